//! The settings that depend on several fields, and the forms of lists of objects. Pure.

use std::net::IpAddr;

use serde_json::Value;

use super::convert::{Context, Converted, Setting};
use super::fields::{self, Needs};
use super::merge::default_thresholds;
use super::{Given, Layer};

/// The port of the health endpoints of a kubelet (`healthzPort`, 1.36).
const HEALTHZ_PORT: u16 = 10248;
/// The port of the node API (`port`, 1.36).
const NODE_API_PORT: u16 = 10250;
/// A limit on parallel pulls that no node reaches.
const MANY_PULLS: u32 = 1_000_000;

/// Adds the settings that depend on several fields.
pub(super) fn convert(layer: &Layer, context: Context<'_>, to: &mut Converted) {
    let mut combined = Combined { layer, to };
    combined.node_api();
    combined.health();
    combined.pulls();
    combined.thresholds();
    combined.gates(context.gates);
    combined.image_service();
    combined.rotation(context.kubeconfig);
    combined.host_name();
}

struct Combined<'a> {
    layer: &'a Layer,
    to: &'a mut Converted,
}

impl<'a> Combined<'a> {
    /// The value of a field as a text, if it is given.
    fn text(&self, key: &'static str) -> Option<String> {
        Some(fields::of_key(key)?.kind.text(&self.layer.get(key)?.value))
    }

    /// The first of these fields that is given.
    fn first(&self, keys: &[&'static str]) -> Option<(&'static str, &'a Given)> {
        keys.iter().find_map(|key| Some((*key, self.layer.get(key)?)))
    }

    /// Adds a setting that a field gives.
    fn set(&mut self, flag: &'static str, value: String, needs: Needs, (field, given): (&'static str, &Given)) {
        self.to.settings.push(Setting { flag, value: Some(value), field, given: given.clone(), needs });
    }

    /// The address of an address field and a port field, if one of them is given. `None` with a fault if they give none.
    fn address(&mut self, address: &'static str, port: &'static str, default: (&str, u16)) -> Option<(IpAddr, u16)> {
        let mut fault = |field: &'static str, message: String| {
            if let Some(given) = self.layer.get(field) {
                self.to.fault(field, given, message);
            }
        };
        let text = |key: &'static str| Some(fields::of_key(key)?.kind.text(&self.layer.get(key)?.value));
        let ip = text(address).filter(|text| !text.is_empty()).unwrap_or_else(|| default.0.to_owned());
        let Ok(ip) = ip.parse::<IpAddr>() else {
            fault(address, format!("{ip:?} is not an IP address: write it like {}", default.0));
            return None;
        };
        let number = text(port).unwrap_or_else(|| default.1.to_string());
        let Ok(number) = number.parse::<u16>() else {
            fault(port, format!("{number} is not a port: write a number such as {}", default.1));
            return None;
        };
        Some((ip, number))
    }

    /// The address of the node API, or that it is off.
    fn node_api(&mut self) {
        if self.text("enableServer").is_some_and(|text| text == "false") {
            if let Some(source) = self.first(&["enableServer"]) {
                self.set("node-api", "off".to_owned(), Needs::Cluster, source);
            }
            return;
        }
        let source = self.first(&["port", "address"]);
        let (Some(source), Some((ip, port))) = (source, self.address("address", "port", ("0.0.0.0", NODE_API_PORT)))
        else {
            return;
        };
        let port = if port == 0 { NODE_API_PORT } else { port };
        self.set("node-api", socket_address(ip, port), Needs::Cluster, source);
    }

    /// The health endpoints, which are admin endpoints here.
    fn health(&mut self) {
        let Some(source) = self.first(&["healthzPort", "healthzBindAddress"]) else { return };
        let Some((ip, port)) = self.address("healthzBindAddress", "healthzPort", ("127.0.0.1", HEALTHZ_PORT)) else {
            return;
        };
        if port == 0 {
            self.set("admin", "off".to_owned(), Needs::Nothing, source);
        } else if ip.is_loopback() {
            self.set("admin", socket_address(ip, port), Needs::Nothing, source);
        } else if let Some((field, given)) = self.first(&["healthzBindAddress"]) {
            let message = format!(
                "{ip} is reachable from other machines, which need TLS and a token: set 127.0.0.1, and let other machines read \
                 /healthz of the node API"
            );
            self.to.fault(field, given, message);
        }
    }

    fn pulls(&mut self) {
        let most = self.text("maxParallelImagePulls");
        let serial = self.text("serializeImagePulls");
        let Some(source) = self.first(&["maxParallelImagePulls", "serializeImagePulls"]) else { return };
        let most = match (serial.as_deref(), most) {
            (Some("true"), Some(most)) if most != "1" => {
                let message = format!("{most} has no effect with serializeImagePulls: true: remove one of the two");
                return self.to.fault(source.0, source.1, message);
            }
            (Some("true"), _) => "1".to_owned(),
            (_, Some(most)) => most,
            (_, None) => MANY_PULLS.to_string(),
        };
        self.set("max-parallel-image-pulls", most, Needs::ContainerRuntime, source);
    }

    /// The hard thresholds. The file replaces all defaults, or only those of its signals.
    fn thresholds(&mut self) {
        let Some(source) = self.first(&["evictionHard"]) else { return };
        let Value::Object(given) = &source.1.value else { return };
        let mut all = serde_json::Map::new();
        if self.text("mergeDefaultEvictionSettings").is_some_and(|text| text == "true")
            && let Value::Object(defaults) = default_thresholds()
        {
            all = defaults;
        }
        all.extend(given.clone());
        let text = super::Kind::TextMap('<').text(&Value::Object(all));
        self.set("eviction-hard", text, Needs::Nothing, source);
    }

    /// The feature gates. Most gates of a kubelet turn on what the agent does not do, or always does.
    fn gates(&mut self, known: &[&'static str]) {
        let Some(source) = self.first(&["featureGates"]) else { return };
        let Value::Object(given) = &source.1.value else { return };
        let (known, other): (Vec<_>, Vec<_>) = given.iter().partition(|(name, _)| known.contains(&name.as_str()));
        if !known.is_empty() {
            let known = known.into_iter().map(|(name, value)| (name.clone(), value.clone())).collect();
            let text = super::Kind::BoolMap.text(&Value::Object(known));
            self.set("feature-gates", text, Needs::Nothing, source);
        }
        if !other.is_empty() {
            let names = other.into_iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
            self.to.notice(source.0, source.1, &format!("the agent has no feature gates {names}"));
        }
    }

    fn image_service(&mut self) {
        let field = "imageServiceEndpoint";
        let endpoint = self.text(field).filter(|endpoint| !endpoint.is_empty());
        let (Some(endpoint), Some((_, given))) = (endpoint, self.first(&[field])) else { return };
        if self.text("containerRuntimeEndpoint").as_ref() != Some(&endpoint) {
            let message = format!(
                "{endpoint:?} is not supported here: images come from the container runtime of containerRuntimeEndpoint, so leave it out"
            );
            self.to.fault(field, given, message);
        }
    }

    /// A kubelet renews its certificate if this is true. The agent does with `--bootstrap-kubeconfig`, and the credentials of a kubeconfig
    /// may request the next certificate.
    fn rotation(&mut self, kubeconfig: Option<&str>) {
        let field = "rotateCertificates";
        let is_on = self.text(field).is_some_and(|text| text == "true");
        let has_bootstrap = self.text("bootstrap-kubeconfig").is_some_and(|file| !file.is_empty());
        let of_flag = self.text("kubeconfig").filter(|file| !file.is_empty());
        let kubeconfig = of_flag.or_else(|| kubeconfig.map(str::to_owned));
        if let (true, false, Some(kubeconfig), Some(source)) = (is_on, has_bootstrap, kubeconfig, self.first(&[field]))
        {
            self.set("bootstrap-kubeconfig", kubeconfig, Needs::Cluster, source);
        }
    }

    /// The name of the node. A kubelet writes a host name in lower case.
    fn host_name(&mut self) {
        let field = "hostname-override";
        let name = self.text(field).map(|name| name.trim().to_lowercase()).filter(|name| !name.is_empty());
        if let (Some(name), Some(source)) = (name, self.first(&[field])) {
            self.set("node-name", name, Needs::Nothing, source);
        }
    }
}

fn socket_address(ip: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(ip, port).to_string()
}

/// Taints as `KEY=VALUE:EFFECT`, separated by commas. A flag has this form already.
pub(super) fn taints(value: &Value) -> String {
    let Value::Array(taints) = value else { return value.as_str().unwrap_or_default().to_owned() };
    let taint = |taint: &Value| {
        let part = |name: &str| taint[name].as_str().unwrap_or_default().to_owned();
        let value = taint["value"].as_str().filter(|value| !value.is_empty()).map(|value| format!("={value}"));
        format!("{}{}:{}", part("key"), value.unwrap_or_default(), part("effect"))
    };
    taints.iter().map(taint).collect::<Vec<_>>().join(",")
}

/// Grace periods as `PRIORITY=SECONDS`, separated by commas.
pub(super) fn priorities(value: &Value) -> String {
    let Value::Array(groups) = value else { return value.as_str().unwrap_or_default().to_owned() };
    let number = |group: &Value, name: &str| group[name].as_i64().unwrap_or_default();
    let group =
        |group: &Value| format!("{}={}", number(group, "priority"), number(group, "shutdownGracePeriodSeconds"));
    groups.iter().map(group).collect::<Vec<_>>().join(",")
}
