//! The registration after a panic of the client.

use podwright_actors::Registration;

use super::Registered;

/// The lease is renewed every 10 s. The node counts as lost 40 s after the last renewal.
#[actix::test]
async fn lease_is_renewed_after_a_panic_and_the_part_is_reported_meanwhile() {
    let this = Registered::new().await;
    let renewed = this.renewed();
    this.api.server.panic_in("PUT lease");
    let mut stopped = Vec::new();
    for _ in 0..24 {
        if stopped.is_empty() {
            this.node.wait(0.5).await;
            stopped = this.node.node.stopped_parts();
        }
    }
    let reported: Vec<_> = stopped.iter().map(|part| (part.name, part.panic.as_deref())).collect();
    assert_eq!(reported, [("node_status", Some("a fault of the client"))]);
    assert_eq!(this.renewed(), renewed);

    this.node.wait(5.0).await;
    assert!(matches!(this.progress(), Registration::Registered(_)), "{:?}", this.progress());
    assert_ne!(this.renewed(), renewed);
    assert!(this.node.node.stopped_parts().is_empty());
    assert_eq!(this.node.metric("podwright_part_panics_total{part=\"node_status\"}"), 1.0);
    assert_eq!(this.node.events.count("node", "Starting"), 1, "the agent has started once");
}
