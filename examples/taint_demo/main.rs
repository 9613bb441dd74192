//! The eviction of a pod from a tainted device without a cluster: an API server in memory, the agent, the driver of the example
//! `dra_driver`, the device taint eviction controller, and one pod with a claim. `podwright preview` shows what a DeviceTaintRule would do;
//! the rule is applied, and the pod is evicted. `make demo-taint` runs it.

#[path = "../support/demo.rs"]
mod demo;

use std::fs;
use std::path::Path;

use demo::{DRIVER, Demo, Result, program, request, start, until};
use podwright_stand_in::{StandIn, User, Verb};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

const RULES: &str = "/apis/resource.k8s.io/v1beta2/devicetaintrules";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let demo = Demo::start().await?;
    // No file ends the pod.
    demo.run_pod(&demo.root().join("never")).await?;
    demo.until_device_is_used().await?;
    println!("5. The pod runs and uses the device.");

    let kubeconfig = demo.root().join("controllers.kubeconfig");
    demo.server.write_kubeconfig(&kubeconfig, &User::admin())?;
    let _controllers = controllers(&kubeconfig, demo.root())?;
    let watches =
        |served: &podwright_stand_in::Served| served.verb == Some(Verb::Watch) && served.resource == "devicetaintrules";
    until("the controller watches rules", || demo.server.requests().iter().any(watches)).await?;
    println!("6. The device taint eviction controller runs, with DeviceTaintRules turned on.");

    let file = demo.root().join("rule.json");
    fs::write(&file, rule().to_string())?;
    println!("7. An administrator wants to taint the device, and first previews the rule:");
    preview(&file, &kubeconfig).await?.lines().for_each(|line| println!("     {line}"));

    request(&demo.server, "POST", RULES, &rule())?;
    until("the pod is gone", || demo.server.get("pods", "default", "web").is_none()).await?;
    println!(
        "8. The rule was applied. The controller deleted the pod, and the agent stopped it. The event of the pod:"
    );
    until("the event is written", || event(&demo.server).is_some()).await?;
    println!("     {}", event(&demo.server).unwrap_or_default());
    until("the driver releases the claim", || demo.cdi_file().is_none()).await?;
    demo.print_calls_of_driver();

    until("the rule completes", || reason(&demo.server) == Some(json!("Completed"))).await?;
    println!("9. The status of the rule says that the eviction is complete:");
    println!("     {}", condition(&demo.server).unwrap_or_default());
    Ok(())
}

fn controllers(kubeconfig: &Path, root: &Path) -> Result<Child> {
    let mut controllers = Command::new(program("podwright")?);
    controllers.args(["controllers", "--controllers", "device-taint-eviction", "--leader-elect=false"]);
    controllers.args(["--feature-gates", "DRADeviceTaintRules=true", "--admin", "127.0.0.1:0"]);
    controllers.arg("--root").arg(root.join("controllers")).arg("--kubeconfig").arg(kubeconfig);
    start(controllers, &root.join("controllers.log"))
}

/// A rule that taints the device of the pod.
fn rule() -> Value {
    let selector = json!({"driver": DRIVER, "pool": "demo", "device": "device-0"});
    let taint = json!({"key": "example.com/broken", "effect": "NoExecute"});
    json!({"apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceTaintRule", "metadata": {"name": "broken-camera"},
        "spec": {"deviceSelector": selector, "taint": taint}})
}

async fn preview(file: &Path, kubeconfig: &Path) -> Result<String> {
    let mut preview = Command::new(program("podwright")?);
    let output = preview.args(["preview", "-f"]).arg(file).arg("--kubeconfig").arg(kubeconfig).output().await?;
    if !output.status.success() {
        return Err(String::from_utf8(output.stderr)?.into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// The reason and the text of the event of the controller.
fn event(server: &StandIn) -> Option<String> {
    const REASON: &str = "DeviceTaintManagerEviction";
    let event = server.all("events").into_iter().find(|event| event["reason"] == REASON)?;
    // The text is in another field in each of the two APIs of events.
    let text = event["message"].as_str().or(event["note"].as_str())?;
    Some(format!("{REASON}: {text}"))
}

/// The condition of the rule that says whether it evicts pods.
fn condition(server: &StandIn) -> Option<Value> {
    let rule = server.get("devicetaintrules", "", "broken-camera")?;
    rule["status"]["conditions"].as_array()?.iter().find(|found| found["type"] == "EvictionInProgress").cloned()
}

fn reason(server: &StandIn) -> Option<Value> {
    Some(condition(server)?["reason"].clone())
}
