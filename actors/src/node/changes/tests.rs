use futures_util::FutureExt;

use super::*;
use crate::pod::PodObject;
use crate::ports::{ResourceError, ResourceFuture, ResourceWait};

/// Resources of ended pods.
struct Ended {
    holds: bool,
    pods: Vec<(PodUid, Option<Time>)>,
}

impl ResourcePhase for Ended {
    fn prepare<'a>(&'a self, _: &'a Arc<PodObject>) -> ResourceFuture<'a> {
        async { Ok(()) }.boxed()
    }

    fn is_prepared(&self, _: &PodObject) -> bool {
        false
    }

    fn container_devices(&self, _: &PodObject, _: &str) -> Result<Vec<String>, ResourceError> {
        Ok(Vec::new())
    }

    fn release<'a>(&'a self, _: &'a PodUid) -> ResourceFuture<'a> {
        async { Ok(()) }.boxed()
    }

    fn holds(&self, _: &PodUid) -> bool {
        self.holds
    }

    fn reconcile(&self, _: &dyn Fn(&PodUid) -> bool) -> Vec<PodUid> {
        Vec::new()
    }

    fn ended_pods(&self) -> Vec<(PodUid, Option<Time>)> {
        self.pods.clone()
    }

    fn waits(&self, _: &PodUid) -> Vec<ResourceWait> {
        Vec::new()
    }
}

#[test]
fn a_pass_is_needed_if_a_try_is_due_or_the_resources_are_released() {
    let now = Time::from_secs(100);
    let (before, after) = (Time::from_secs(99), Time::from_secs(101));
    let pods = |uid: &str, next| vec![(PodUid::from(uid), next)];
    let table = [
        ("the pod holds nothing", false, vec![], true),
        ("its worker releases the resources", true, vec![], false),
        ("the try is due", true, pods("a", Some(before)), true),
        ("the try is due now", true, pods("a", Some(now)), true),
        ("the try is due later", true, pods("a", Some(after)), false),
        ("a try runs", true, pods("a", None), false),
        ("another pod has a due try", true, pods("b", Some(before)), false),
    ];
    for (case, holds, pods, needed) in table {
        assert_eq!(needs_pass(&Ended { holds, pods }, &"a".into(), now), needed, "{case}");
    }
}
