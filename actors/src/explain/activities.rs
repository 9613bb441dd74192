//! Derives a pod's waits from the current activities of its hook. Pure.

use crate::container_manager::activity::{Activity, Task};
use crate::container_manager::governor::{QueuePosition, StartKind};
use crate::text::error_chain;

use super::facts::PodFacts;
use super::wait::{LifecycleHook, SubjectKind, Wait, WaitKind, WaitSubject};

/// The waits, the oldest first.
pub(super) fn waits(pod: &PodFacts) -> Vec<Wait> {
    pod.activities.iter().map(|(activity, position)| wait(pod, activity, *position)).collect()
}

/// The path of the volume operation in progress, as the end of a sentence.
fn at(pod: &PodFacts) -> String {
    pod.volume_path.as_deref().map_or(String::new(), |path| format!(": {} is under way", path.display()))
}

fn wait(pod: &PodFacts, activity: &Activity, position: Option<QueuePosition>) -> Wait {
    let container = activity.container.as_ref().map(ToString::to_string);
    let name = container.as_deref().unwrap_or_default();
    let wait = match &activity.task {
        Task::ReadStatus => {
            let detail = "the runtime's status of the pod is being read";
            Wait::new(WaitKind::Runtime, WaitSubject::only(SubjectKind::Runtime), detail, "the runtime answers")
        }
        Task::SetUpVolumes => {
            let detail = format!("its volumes are being set up{}", at(pod));
            Wait::new(WaitKind::Volume, WaitSubject::only(SubjectKind::Volume), detail, "all volumes are there")
        }
        Task::TakeDownVolumes => {
            let detail = format!("its volumes are being taken down{}", at(pod));
            Wait::new(WaitKind::Volume, WaitSubject::only(SubjectKind::Volume), detail, "all volumes are gone")
        }
        Task::MakeCgroup => {
            let detail = "its cgroup is being made";
            Wait::new(WaitKind::Cgroup, WaitSubject::only(SubjectKind::Sandbox), detail, "the cgroup is there")
        }
        Task::RemoveCgroup => {
            let detail = "its cgroup is being removed, with what may still run in it";
            Wait::new(WaitKind::Cgroup, WaitSubject::only(SubjectKind::Sandbox), detail, "the cgroup is gone")
        }
        Task::AwaitTurn(kind, _) => {
            let what = match kind {
                StartKind::Sandbox => "its sandbox".to_owned(),
                StartKind::Container => format!("container {name:?}"),
            };
            let queue = position.map(|position| {
                let QueuePosition { before, running, limit } = position;
                format!(": {before} before it in the queue, {running} of at most {limit} starts run, as many as the runtime handles well")
            });
            let detail = format!("it waits for the start governor to start {what}{}", queue.unwrap_or_default());
            Wait::new(WaitKind::Governor, WaitSubject::only(SubjectKind::Governor), detail, "starts before it end")
        }
        Task::PrepareResources => {
            let detail = "the devices of its ResourceClaims are being prepared";
            Wait::new(WaitKind::Claim, WaitSubject::only(SubjectKind::Claim), detail, "all drivers have prepared them")
        }
        Task::ReleaseResources => {
            let detail = "the devices of its ResourceClaims are being released";
            Wait::new(WaitKind::Claim, WaitSubject::only(SubjectKind::Claim), detail, "all drivers have released them")
        }
        Task::RunSandbox => {
            let detail = "the runtime makes its sandbox";
            Wait::new(WaitKind::Sandbox, WaitSubject::only(SubjectKind::Sandbox), detail, "the runtime has made it")
        }
        Task::PullImage(image) => {
            let failed =
                pod.pulls.get(image).map(|last| format!("; the last try failed: {}", error_chain(&last.error)));
            let detail = format!("container {name:?}: image {image:?} is being pulled{}", failed.unwrap_or_default());
            let on = WaitSubject::new(SubjectKind::Image, image);
            let tries = pod.pulls.get(image).map_or(0, |last| last.tries);
            Wait::new(WaitKind::Image, on, detail, "the image is there").tries(tries)
        }
        Task::StartContainer => {
            let detail = format!("the runtime starts container {name:?}");
            Wait::of_container(WaitKind::ContainerStart, name, detail, "the runtime has started it")
        }
        Task::Resize => {
            let detail = "the resources of its containers are being changed";
            let on = WaitSubject::only(SubjectKind::Runtime);
            Wait::new(WaitKind::Resize, on, detail, "the runtime has changed them")
        }
        Task::PostStart => {
            let detail = format!("the post-start hook of container {name:?} runs");
            Wait::of_container(WaitKind::LifecycleHook(LifecycleHook::PostStart), name, detail, "the hook ends")
        }
        Task::PreStop => {
            let detail = format!("the pre-stop hook of container {name:?} runs");
            let what = WaitKind::LifecycleHook(LifecycleHook::PreStop);
            Wait::of_container(what, name, detail, "the hook ends, or the grace period ends")
        }
        Task::AwaitOthers => {
            let detail = format!("container {name:?} is stopped after those that need it");
            Wait::of_container(WaitKind::StopOrder, name, detail, "they have stopped, or the grace period ends")
        }
        Task::StopContainer => {
            let detail = format!("container {name:?} was asked to stop and still runs");
            Wait::of_container(
                WaitKind::ContainerStop,
                name,
                detail,
                "it ends, or is killed at the end of the grace period",
            )
        }
        Task::StopSandbox => {
            let detail = "the runtime stops its sandbox";
            Wait::new(WaitKind::Sandbox, WaitSubject::only(SubjectKind::Sandbox), detail, "the runtime has stopped it")
        }
    };
    Wait { container, ..wait }.since(activity.since).next(activity.until)
}
