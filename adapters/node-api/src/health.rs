//! `/healthz` and the paths below it, one for each check. Pure.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use podwright_model::texts::node_api::SYNC_LOOP_LATE;

/// One check, and why it fails.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check {
    name: &'static str,
    failure: Option<&'static str>,
}

/// The checks of a kubelet (`InstallAuthNotRequiredHandlers`, `pkg/kubelet/server/server.go`, kubelet 1.36). `ping` and
/// `log` always succeed here: an answer is all that `ping` proves, and logging has no queue that can be full. `plugins` is podwright's
/// own: it fails while no plugin can register.
pub(super) fn checks(is_sync_loop_late: bool, can_register_plugins: bool) -> [Check; 4] {
    let check = |name, failure| Check { name, failure };
    [
        check("ping", None),
        check("log", None),
        check("syncloop", is_sync_loop_late.then_some(SYNC_LOOP_LATE)),
        check("plugins", (!can_register_plugins).then_some("the registry directory of plugins is not watched")),
    ]
}

/// The answer of all checks. With `verbose`, and if a check fails, it lists them (`handleRootHealth`, `k8s.io/apiserver/pkg/server`).
pub(super) fn all(checks: &[Check], verbose: bool) -> Response {
    let is_healthy = checks.iter().all(|check| check.failure.is_none());
    if is_healthy && !verbose {
        return "ok".into_response();
    }
    let line = |check: &Check| match check.failure {
        None => format!("[+]{} ok\n", check.name),
        Some(_) => format!("[-]{} failed: reason withheld\n", check.name),
    };
    let lines: String = checks.iter().map(line).collect();
    match is_healthy {
        true => format!("{lines}healthz check passed\n").into_response(),
        false => (StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}healthz check failed\n")).into_response(),
    }
}

/// The answer of one check; `None` if there is no such check.
pub(super) fn one(checks: &[Check], name: &str) -> Option<Response> {
    let check = checks.iter().find(|check| check.name == name)?;
    Some(match check.failure {
        None => "ok".into_response(),
        Some(why) => (StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {why}\n")).into_response(),
    })
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;

    use super::*;

    async fn text(response: Response) -> (u16, String) {
        let status = response.status().as_u16();
        (status, String::from_utf8(to_bytes(response.into_body(), 1000).await.unwrap().to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_failed_check_is_listed() {
        let (good, bad) = (checks(false, true), checks(true, true));
        assert_eq!(text(all(&good, false)).await, (200, "ok".into()));
        let verbose = "[+]ping ok\n[+]log ok\n[+]syncloop ok\n[+]plugins ok\nhealthz check passed\n";
        assert_eq!(text(all(&good, true)).await, (200, verbose.into()));
        let failed =
            "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\n[+]plugins ok\nhealthz check failed\n";
        assert_eq!(text(all(&bad, false)).await, (500, failed.into()));
        assert_eq!(text(one(&bad, "ping").unwrap()).await, (200, "ok".into()));
        let late = "internal server error: sync Loop took longer than expected\n";
        assert_eq!(text(one(&bad, "syncloop").unwrap()).await, (500, late.into()));
        assert!(one(&good, "other").is_none());
        let unwatched = "internal server error: the registry directory of plugins is not watched\n";
        assert_eq!(text(one(&checks(false, false), "plugins").unwrap()).await, (500, unwatched.into()));
    }
}
