//! The runtime of the rig: the scripted runtime with one pod, and its calls as lines.

use std::sync::Arc;
use std::time::Duration;

use podwright_fixtures::scripted_runtime::{self, Call, Op, ScriptedRuntime};

use crate::ports::{ContainerStatus, ImageError, PodRuntimeStatus, RuntimeError, TokioClock};

/// The behaviour of a container. The default runs for ever and stops at once with exit code 143.
#[derive(Clone, Copy, Debug)]
pub(super) struct Script {
    /// When the container ends by itself, and its exit code.
    pub(super) ends: Option<(Duration, i32)>,
    /// How long the container takes to stop; `None` never stops.
    pub(super) stops_in: Option<Duration>,
    /// How long a command in the container takes, and its exit code.
    pub(super) exec: (Duration, i32),
}

impl Default for Script {
    fn default() -> Self {
        Script { ends: None, stops_in: Some(Duration::ZERO), exec: (Duration::ZERO, 0) }
    }
}

impl From<Script> for scripted_runtime::Script {
    fn from(script: Script) -> Self {
        scripted_runtime::Script {
            ends: script.ends,
            stops: script.stops_in.map(|after| (after, 143)),
            exec: Some(script.exec),
            ..scripted_runtime::Script::default()
        }
    }
}

/// A runtime with one pod.
pub(super) struct OnePod(Arc<ScriptedRuntime>);

impl OnePod {
    pub(super) fn new(clock: TokioClock) -> Self {
        OnePod(Arc::new(ScriptedRuntime::of_one_pod(clock, Script::default().into())))
    }

    /// The port of the manager.
    pub(super) fn port(&self) -> Arc<ScriptedRuntime> {
        self.0.clone()
    }

    pub(super) fn script(&self, container: &str, script: Script) {
        self.0.rescript(container, script.into());
    }

    pub(super) fn fail_image(&self, image: &str, error: ImageError) {
        self.0.fail_image(image, error);
    }

    /// Makes the image present without a pull.
    pub(super) fn have_image(&self, image: &str) {
        self.0.have_image(image);
    }

    pub(super) fn pull_takes(&self, time: Duration) {
        self.0.slow(Op::Pull, time.as_secs_f64());
    }

    /// Makes a call (`create a`, `sandbox`) fail until [`heal`](Self::heal).
    pub(super) fn fail(&self, call: &str) {
        self.fail_with(call, RuntimeError::failed("it broke"));
    }

    pub(super) fn fail_with(&self, call: &str, error: RuntimeError) {
        self.0.fail_calls(call, error);
    }

    /// The container ends in a start that fails.
    pub(super) fn end_in_failed_start(&self, container: &str) {
        self.0.end_in_failed_start(container);
    }

    /// The container starts, and the answer to the call is lost.
    pub(super) fn lose_answers_to_start(&self, container: &str, error: RuntimeError) {
        self.0.lose_answers_to_start(container, error);
    }

    pub(super) fn heal(&self) {
        self.0.heal();
    }

    pub(super) fn end_sandbox(&self) {
        for uid in self.0.pods() {
            self.0.break_sandbox(uid.to_string().as_str());
        }
    }

    pub(super) fn edit(&self, id: &str, edit: impl FnOnce(&mut ContainerStatus)) {
        self.0.edit_run(id, edit);
    }

    /// Takes the calls since the last time, each with its second.
    pub(super) fn calls(&self) -> Vec<String> {
        self.0.take_calls().iter().filter_map(line).collect()
    }

    pub(super) fn status(&self) -> PodRuntimeStatus {
        self.0.pods().first().map(|uid| self.0.inspect(uid)).unwrap_or_default()
    }
}

/// `3: remove a#0 keep`. `None` for a pull, and for a call that only reads.
fn line(call: &Call) -> Option<String> {
    let what = match call.op? {
        Op::RunSandbox | Op::Start | Op::Stop | Op::Exec => call.what.clone(),
        Op::StopSandbox => format!("stop-sandbox {}", call.id),
        Op::Create => format!("create {}", call.id),
        Op::Remove => format!("remove {}{}", call.id, if call.keeps_log { " keep" } else { "" }),
        Op::List | Op::Status | Op::Pull | Op::Update | Op::Events => return None,
    };
    Some(format!("{}: {what}", call.at as u64))
}
