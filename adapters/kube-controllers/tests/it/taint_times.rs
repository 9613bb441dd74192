//! The device taint eviction controller and its API server in virtual time.

use podwright_controllers::device_taint_eviction::Settings;
use podwright_model::time::Time;
use podwright_ports::Clock;
use podwright_stand_in::{Fault, Rule, Verb};
use tokio::time::{sleep, timeout};

use super::taint_replica::TaintReplica;
use super::*;

/// 2027-01-15T08:00:00Z.
const T0: Time = Time::from_secs(1_800_000_000);
/// The limit of a wait.
const DAY: Duration = Duration::from_secs(86_400);

/// A cluster without a port, with this clock.
fn in_virtual_time(clock: TokioClock) -> Cluster {
    Cluster { server: StandIn::builder().clock(move || clock.now().to_timestamp()).without_port() }
}

fn direct_client(cluster: &Cluster) -> Client {
    Client::new(cluster.server.service(User::admin()), "default")
}

/// The whole seconds since the start.
fn second(clock: TokioClock) -> u64 {
    clock.now().since(T0).as_secs()
}

async fn sleep_until(clock: TokioClock, seconds: u64) {
    sleep((T0 + Duration::from_secs(seconds)).since(clock.now())).await;
}

/// The calls of the controller from now on, with their seconds since the start.
fn calls(cluster: &Cluster, clock: TokioClock) -> Arc<parking_lot::Mutex<Vec<(u64, String)>>> {
    let calls = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let recorded = calls.clone();
    cluster.server.faults().on(move |request| {
        if let Some(verb @ (Verb::Get | Verb::Patch | Verb::Delete)) = request.verb {
            recorded.lock().push((second(clock), format!("{verb:?} {}", request.resource)));
        }
        None
    });
    calls
}

/// TAINT-S11 and TAINT-S46.
#[tokio::test(start_paused = true)]
async fn pod_goes_when_its_toleration_ends_and_the_rule_completes_ten_seconds_later() {
    let clock = TokioClock::starting_at(T0);
    let cluster = in_virtual_time(clock);
    cluster.users(1, &json!([{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}]));
    let replica = TaintReplica::start_with(direct_client(&cluster), Settings::default(), Arc::new(clock));
    replica.until_pending(0).await;
    let (calls, begin) = (calls(&cluster, clock), second(clock));
    let time_added = (T0 + Duration::from_secs(30)).to_timestamp().to_string();
    cluster.rule_since(&json!({"driver": "d"}), &time_added);
    sleep_until(clock, 89).await;
    assert!(!cluster.is_deleted("p0"));
    assert_eq!(cluster.progress(), Some((json!("True"), json!("PodsPendingEviction"))));
    sleep_until(clock, 99).await;
    assert!(cluster.is_deleted("p0"));
    assert_eq!(cluster.progress(), Some((json!("True"), json!("PodsPendingEviction"))));
    sleep_until(clock, 101).await;
    assert_eq!(cluster.progress(), Some((json!("False"), json!("Completed"))));
    sleep_until(clock, 3600).await;
    let expected = [
        (begin, "Patch devicetaintrules/status"),
        (90, "Get pods"),
        (90, "Patch pods/status"),
        (90, "Delete pods"),
        (100, "Patch devicetaintrules/status"),
    ];
    let calls: Vec<_> = calls.lock().clone();
    assert_eq!(calls, expected.map(|(second, call)| (second, call.to_owned())));
    replica.stop().await;
}

#[tokio::test(start_paused = true)]
async fn server_that_fails_half_of_all_calls_loses_each_pod_once() {
    const PODS: usize = 300;
    let clock = TokioClock::starting_at(T0);
    let cluster = in_virtual_time(clock);
    cluster.users(PODS, &json!([]));
    let replica = TaintReplica::start_with(direct_client(&cluster), Settings::default(), Arc::new(clock));
    replica.until_pending(0).await;
    let calls = [
        (Verb::Get, "pods"),
        (Verb::Patch, "pods/status"),
        (Verb::Delete, "pods"),
        (Verb::Patch, "devicetaintrules/status"),
    ];
    for (verb, resource) in calls {
        // A fourth of the calls, and a third of the others: together a half.
        for (percent, fault) in [(25, Fault::too_many_requests(1)), (34, Fault::status(500))] {
            let rule = Rule::new().verb(verb).resource(resource).percent(percent);
            cluster.server.faults().inject(rule, fault);
        }
    }
    cluster.rule();
    let deleted = || {
        let deletions = cluster.calls(Verb::Delete, "pods");
        deletions.into_iter().filter(|served| served.code == 200).map(|served| served.name).collect::<Vec<_>>()
    };
    let all_deleted = async {
        while deleted().len() < PODS {
            sleep(Duration::from_secs(10)).await;
        }
    };
    timeout(DAY, all_deleted).await.expect("all pods are deleted");
    let completed = async {
        while cluster.progress() != Some((json!("False"), json!("Completed"))) {
            sleep(Duration::from_secs(10)).await;
        }
    };
    timeout(DAY, completed).await.expect("the rule is complete");
    sleep(Duration::from_secs(3600)).await;
    let mut names = deleted();
    names.sort_unstable();
    names.dedup();
    assert_eq!((names.len(), deleted().len()), (PODS, PODS), "each pod once");
    for code in [429, 500] {
        for (verb, resource) in calls.into_iter().take(3) {
            let refused = cluster.calls(verb, resource).iter().filter(|served| served.code == code).count();
            assert!(refused > 0, "{verb:?} {resource} was not answered with {code}");
        }
    }
    replica.stop().await;
}
