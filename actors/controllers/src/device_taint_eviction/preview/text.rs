//! Formats a preview as text.

use std::fmt;

use podwright_model::text::plain;
use podwright_model::time::Time;

use super::super::status::plural;
use super::{ObjectName, PreviewedDevice, PreviewedPod, RulePreview};

/// The maximum length of a line in bytes.
const LINE: usize = 8192;
/// The spaces between two columns.
const GAP: usize = 3;

impl RulePreview {
    /// The numbers of devices and pods in one line.
    pub fn summary(&self) -> String {
        let published = self.devices.iter().filter(|device| device.is_published).count() as u64;
        let allocated = self.allocations as u64;
        let pods = plural(self.pods.len() as u64, "pod", "pods");
        let namespaces = plural(self.namespaces as u64, "namespace", "namespaces");
        let held = match self.pods.iter().filter(|pod| pod.is_held).count() as u64 {
            0 => String::new(),
            held => format!("; {}", plural(held, "of them is held", "of them are held")),
        };
        format!(
            "{}; {}; {pods} in {namespaces} {}{held}",
            plural(published, "published device matches", "published devices match"),
            plural(allocated, "allocated device matches", "allocated devices match"),
            match (self.evicts, self.pods.len()) {
                (true, 1) => "is evicted",
                (true, _) => "are evicted",
                (false, _) => "would be evicted under NoExecute",
            }
        )
    }
}

impl fmt::Display for RulePreview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        line(f, &format!("DeviceTaintRule {}: taint {}, since {}", self.rule, self.taint, stamp(self.since)))?;
        line(f, &format!("  selects {}", self.selects))?;
        if self.evicts && self.selects_all {
            line(
                f,
                "  WARNING: this rule evicts all pods of the cluster that use devices. Set a field of spec.deviceSelector.",
            )?;
        }
        if !self.evicts {
            line(f, "  This effect evicts no pod. The pods below are those that the effect NoExecute would evict.")?;
        }
        line(f, &format!("  {}", self.summary()))?;
        if !self.devices.is_empty() {
            writeln!(f, "\ndevices")?;
            table(f, &["DRIVER", "POOL", "DEVICE", "PUBLISHED", "CLAIMS"], self.devices.iter().map(device_row))?;
        }
        if !self.pods.is_empty() {
            writeln!(f, "\npods, in the order of their evictions")?;
            let row = |pod: &PreviewedPod| pod_row(pod, self.now);
            table(f, &["NAMESPACE", "NAME", "NODE", "PRIORITY", "EVICTION", "NOTE"], self.pods.iter().map(row))?;
        }
        if !self.tolerating.is_empty() {
            writeln!(f, "\npods that tolerate the taint for ever")?;
            for pod in &self.tolerating {
                line(f, &format!("  {}", join(pod)))?;
            }
        }
        Ok(())
    }
}

fn device_row(device: &PreviewedDevice) -> Vec<String> {
    let claims: Vec<_> = device.claims.iter().map(join).collect();
    let published = if device.is_published { "yes" } else { "no" };
    vec![device.driver.clone(), device.pool.clone(), device.device.clone(), published.to_owned(), claims.join(",")]
}

fn pod_row(pod: &PreviewedPod, now: Time) -> Vec<String> {
    let note = match pod.in_any_case_at {
        Some(other) if other <= pod.at => "other taints evict the pod at this time in any case".to_owned(),
        Some(other) => format!("other taints evict the pod at {} in any case", stamp(other)),
        None => String::new(),
    };
    let PreviewedPod { pod: name, node, priority, at, is_held, .. } = pod;
    let eviction = if *is_held { "held".to_owned() } else { when(*at, now) };
    vec![name.namespace.clone(), name.name.clone(), node.clone(), priority.to_string(), eviction, note]
}

/// When an eviction happens.
pub(in super::super) fn when(at: Time, now: Time) -> String {
    if at <= now {
        return "now".to_owned();
    }
    let left = at.since(now);
    let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
    format!("at {} (in {seconds} s)", stamp(at))
}

/// A time in whole seconds, as the API has it.
pub(in super::super) fn stamp(at: Time) -> String {
    format!("{:.0}", at.to_timestamp())
}

fn join(name: &ObjectName) -> String {
    format!("{}/{}", name.namespace, name.name)
}

/// Writes rows with aligned columns.
fn table(f: &mut fmt::Formatter<'_>, columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> fmt::Result {
    let header: Vec<String> = columns.iter().map(|name| (*name).to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(header).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0) + GAP;
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        line(f, format!("  {}", cells.collect::<String>()).trim_end())?;
    }
    Ok(())
}

/// Writes one line with control characters escaped, because a terminal may show it.
pub(in super::super) fn line(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    writeln!(f, "{}", plain(text, LINE))
}
