//! An engine over hooks: one pod, from its first update to its cleanup. `cargo run --locked --example embed`

use std::collections::HashSet;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use podwright::{
    Engine, Grace, HookContext, PodObject, PodSyncer, RunningPod, SyncError, SyncOutcome, SyncPod, TerminatingPod,
    Update,
};

/// Runs no container, and prints what the engine requests.
struct Printer;

impl PodSyncer for Printer {
    async fn sync_pod(&self, _: &HookContext, work: &SyncPod) -> Result<SyncOutcome, SyncError> {
        println!("sync        {}: start its containers", work.pod.full_name());
        Ok(SyncOutcome::Continue { check_at: None })
    }

    async fn sync_terminating_pod(&self, _: &HookContext, work: &TerminatingPod) -> Result<(), SyncError> {
        println!("terminating {}: stop its containers within {}", work.pod.full_name(), work.grace);
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(())
    }

    async fn sync_terminating_runtime_pod(
        &self,
        _: &HookContext,
        running: &RunningPod,
        grace: Grace,
    ) -> Result<(), SyncError> {
        println!("terminating {}: stop its containers within {grace}, there is no spec", running.uid);
        Ok(())
    }

    async fn sync_terminated_pod(&self, _: &HookContext, pod: &Arc<PodObject>) -> Result<(), SyncError> {
        println!("terminated  {}: remove its volumes", pod.full_name());
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::start(Printer)?;
    let web = r#"{"metadata":{"name":"web","namespace":"default","uid":"1"},"spec":{"containers":[{"name":"a"}]}}"#;
    let pod = PodObject::new(serde_json::from_str(web)?)?;

    engine.update_pod(Update::create(pod.clone()));
    engine.quiesced().await;
    println!("the pod may have running containers: {}", engine.could_have_running_containers(pod.uid()));

    engine.update_pod(Update::kill(pod.clone()));
    engine.quiesced().await;
    println!("the pod may have running containers: {}", engine.could_have_running_containers(pod.uid()));

    // No source desires the pod any more, so the engine drops the record of the finished pod.
    engine.sync_known_pods(&HashSet::<_>::new());
    println!("known pods: {}", engine.known_pods());
    Ok(())
}
