//! `podwright controllers`.

use std::time::Duration;

use podwright_cluster::Cluster;
use podwright_stand_in::{Fault, Rule, User, Verb};
use rustix::process::Signal;
use serde_json::json;

use crate::agent::harness::{AgentHome, eventually, podwright, text};
use crate::support::tls_files::write_tls_files;

/// A home with the kubeconfig of a user.
pub(super) fn home_of(cluster: &Cluster, user: &User) -> AgentHome {
    let home = AgentHome::new();
    cluster.server.write_kubeconfig(home.kubeconfig().as_ref(), &cluster.server.token(user.clone())).unwrap();
    home
}

#[tokio::test]
async fn controllers_run_until_a_signal_and_give_the_lease_back() {
    let cluster = Cluster::start().await;
    cluster.template("one");
    cluster.pod("p", &["one"], &json!({}));
    let home = home_of(&cluster, &User::admin());
    let mut controllers = home.start_controllers(&["--kubeconfig", &home.kubeconfig()]).await;
    cluster.has_all_claims().await;
    let ready = eventually("the controllers are ready", || async {
        let (code, body) = controllers.get_from_port("/readyz", "");
        (code == 200).then_some(body)
    })
    .await;
    assert_eq!(ready, "ok\nleaderelection resourceclaim-controller: leading\n");
    assert_eq!(controllers.get_from_port("/healthz", ""), (200, "ok\n".to_owned()));
    for check in ["ready", "live"] {
        let output = controllers.run_client(&["health", check]).await;
        assert!(output.status.success() && output.stdout.starts_with(b"ok\n"), "{output:?}");
    }
    let (code, metrics) = controllers.get_from_port("/metrics", "");
    assert_eq!(code, 200);
    for line in [
        r#"leader_election_master_status{name="resourceclaim-controller"} 1"#,
        r#"resourceclaim_controller_creates_total{admin_access="false",status="success"} 1"#,
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let (code, body) = controllers.get("/pods", "");
    assert!(code == 404 && body.contains("the endpoints of controllers are"), "{body}");
    let claim = cluster.recorded("p")["c0"].clone();
    let output = controllers.run_client(&["explain", "claim", &format!("default/{claim}")]).await;
    let explained = text(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(explained.starts_with(&format!("default/{claim}: no devices are allocated\n")), "{explained}");
    assert!(explained.contains("controlled by Pod default/p"), "{explained}");
    let output = controllers.run_client(&["explain", "claim", "default/q-c0", "--output", "json"]).await;
    let explained: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(explained["state"], "absent", "{explained}");
    let output = controllers.run_client(&["explain", "claim", "default/p-c0"]).await;
    assert!(text(&output.stdout).contains(&format!("is ResourceClaim default/{claim}.")), "{output:?}");
    controllers.signal(Signal::TERM);
    assert_eq!(controllers.ended().await, Some(0));
    let output = controllers.run_client(&["health", "live"]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("start `podwright run` or `podwright controllers`"), "{output:?}");
    // A lease that is given back shows that the controller stopped in time.
    let lease = cluster.server.get("leases", "kube-system", "resourceclaim-controller").unwrap();
    assert_eq!((&lease["spec"]["holderIdentity"], &lease["spec"]["leaseDurationSeconds"]), (&json!(""), &json!(1)));
    assert!(!controllers.logged().contains("not all events were written"), "{}", controllers.logged());
}

/// The listener is on the loopback interface, so only the flag says where other machines reach it.
#[tokio::test]
async fn leader_writes_the_advertised_address_to_its_lease() {
    let cluster = Cluster::start().await;
    let home = home_of(&cluster, &User::admin());
    let [cert, key, token] = write_tls_files(home.root());
    let (kubeconfig, advertised) = (home.kubeconfig(), "--advertise-address=https://controllers.example:10255");
    let flags = ["--kubeconfig", &*kubeconfig, &*cert, &*key, &*token, advertised];
    let _controllers = home.start_controllers(&flags).await;
    let address = eventually("the replica leads", || async {
        let lease = cluster.server.get("leases", "kube-system", "resourceclaim-controller")?;
        lease["metadata"]["annotations"].get("podwright.dev/admin-address").cloned()
    })
    .await;
    assert_eq!(address, "https://controllers.example:10255");
}

#[tokio::test]
async fn events_are_written_before_the_end() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["none"], &json!({}));
    cluster.server.faults().inject(Rule::new().resource("events"), Fault::Delay(Duration::from_millis(500)));
    let home = home_of(&cluster, &User::admin());
    let mut controllers = home.start_controllers(&["--kubeconfig", &home.kubeconfig(), "--leader-elect=false"]).await;
    eventually("the pass fails", || async { controllers.line("the pass failed") }).await;
    controllers.signal(Signal::TERM);
    assert_eq!(controllers.ended().await, Some(0));
    let events = cluster.server.all("events");
    assert!(events.iter().any(|event| event["reason"] == "FailedResourceClaimCreation"), "{events:?}");
}

#[tokio::test]
async fn missing_permissions_are_reported_with_the_remedy() {
    let cluster = Cluster::start().await;
    let home = home_of(&cluster, &User::new("nobody", &[]));
    let kubeconfig = home.kubeconfig();
    let controllers = home.start_controllers(&["--kubeconfig", &kubeconfig]).await;
    let problem = eventually("the election fails", || async {
        let (code, body) = controllers.get_from_port("/readyz", "");
        (code == 503).then_some(body)
    })
    .await;
    assert!(problem.contains("permit the verbs get, create and update on leases"), "{problem}");
    let output = controllers.run_client(&["explain", "claim", "default/p-c0"]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("run the command on the leader"), "{output:?}");
    controllers.crash().await;
    let controllers = home.start_controllers(&["--kubeconfig", &kubeconfig, "--leader-elect=false"]).await;
    let problem = eventually("the watches fail", || async {
        let (code, body) = controllers.get_from_port("/readyz", "");
        let failed = body.lines().filter(|line| line.starts_with("cannot watch ")).count();
        (code == 503 && failed == 3).then_some(body)
    })
    .await;
    assert!(problem.contains("grant the permissions of examples/deploy/controllers.yaml"), "{problem}");
    assert!(problem.ends_with("leaderelection resourceclaim-controller: off\n"), "{problem}");
}

/// A permission is revoked while the controller runs, and granted again. No template changes.
#[tokio::test]
async fn watch_that_fails_later_is_reported_until_it_works_again() {
    let cluster = Cluster::start().await;
    let home = home_of(&cluster, &User::admin());
    let controllers = home.start_controllers(&["--kubeconfig", &home.kubeconfig(), "--leader-elect=false"]).await;
    let ready = |expected: u16, part: &'static str| {
        let controllers = &controllers;
        eventually("the endpoint says whether the controller is ready", move || async move {
            let (code, body) = controllers.get_from_port("/readyz", "");
            (code == expected && body.contains(part)).then_some(body)
        })
    };
    let failing = |value: u8| {
        let (_, metrics) = controllers.get_from_port("/metrics", "");
        let labels = r#"controller="resourceclaim-controller",resource="resourceclaimtemplates""#;
        assert!(metrics.contains(&format!("podwright_watch_failing{{{labels}}} {value}\n")), "{metrics}");
    };
    ready(200, "ok\n").await;
    failing(0);
    let watches = Rule::new().verb(Verb::Watch).resource("resourceclaimtemplates");
    cluster.server.faults().inject(watches, Fault::status(403));
    cluster.server.drop_watches();
    let problems = ready(503, "cannot watch resourceclaimtemplates: ").await;
    assert!(!problems.contains("the first lists of the watches are not complete"), "{problems}");
    ready(503, "grant the permissions of examples/deploy/controllers.yaml").await;
    failing(1);
    controllers.wait_for_line("watch failed, retrying").await;
    assert!(!controllers.logged().contains("Status {"), "{}", controllers.logged());
    assert_eq!(controllers.get_from_port("/healthz", "").0, 200);
    cluster.server.faults().clear();
    ready(200, "ok\n").await;
    failing(0);
}

#[tokio::test]
async fn repeated_failure_is_logged_once_with_what_failed() {
    let cluster = Cluster::start().await;
    cluster.server.faults().inject(Rule::new().resource("leases"), Fault::status(500));
    let home = home_of(&cluster, &User::admin());
    let short =
        ["--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=100ms"];
    let controllers = home.start_controllers(&[&["--kubeconfig", &*home.kubeconfig()][..], &short].concat()).await;
    eventually("the election is tried again", || async {
        let tries = cluster.server.requests().iter().filter(|served| served.resource == "leases").count();
        (tries > 3).then_some(())
    })
    .await;
    let log = controllers.logged();
    let problems: Vec<_> = log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).collect();
    let [line] = problems[..] else { panic!("{log}") };
    assert!(line.contains("the election of the leader failed; it is tried again"), "{line}");
}

#[tokio::test]
async fn unusable_flags_end_the_controllers_with_the_remedy() {
    let home = AgentHome::new();
    let root = home.root().to_str().unwrap();
    for (flags, code, part) in [
        (&["--kubeconfig", "/nowhere/kubeconfig"][..], 1, "correct the file or --kubeconfig"),
        (&["--kubeconfig", "/k", "--controllers", "resourceclaims"], 2, "a similar value exists: 'resourceclaim'"),
        (&["--kubeconfig", "/k", "--concurrent-resourceclaim-syncs", "0"], 2, "write a whole number of at least 1"),
        (&["--kubeconfig", "/k", "--concurrent-resourceclaim-syncs", "-1"], 2, "write a whole number of at least 1"),
        (&[], 2, "--kubeconfig <FILE>"),
    ] {
        let output = podwright(&[&["controllers", "--root", root, "--admin", "off"], flags].concat()).await;
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(error.contains(part), "{error}");
        assert!(error.matches("os error 2").count() <= 1, "each cause is printed once: {error}");
    }
}

/// A replica with a wrong namespace for the lease would otherwise follow for ever, as if another replica led.
#[tokio::test]
async fn namespace_of_the_lease_that_does_not_exist_is_reported() {
    let cluster = Cluster::start().await;
    let home = home_of(&cluster, &User::admin());
    let flags = ["--kubeconfig", &*home.kubeconfig(), "--leader-elect-resource-namespace=nowhere"];
    let controllers = home.start_controllers(&flags).await;
    eventually("the election fails", || async {
        let (code, body) = controllers.get_from_port("/readyz", "");
        (code == 503 && body.contains("the namespace nowhere does not exist: create it")).then_some(())
    })
    .await;
}
