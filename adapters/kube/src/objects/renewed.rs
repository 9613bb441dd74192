//! A value that is requested from the API server, kept, and requested again in the background.

use std::sync::Arc;

use parking_lot::Mutex;
use podwright_core::objects::{Failures, ReadPlan, RenewalTimes};
use podwright_model::ids::PodUid;
use podwright_model::text::error_chain;
use podwright_model::time::Time;
use podwright_ports::{Clock, ObjectError, ObjectKind};
use tokio::sync::watch;

/// The answer to a request: the value, and how long it is used.
pub(super) type Answer<T> = Result<(T, RenewalTimes), ObjectError>;

/// The answer to a running request; `None` until it arrives. The channel closes with the request.
type Awaited<T> = watch::Receiver<Option<Result<T, ObjectError>>>;

/// One value. [`ReadPlan`] decides when it is requested.
pub(super) struct Renewed<T> {
    kind: ObjectKind,
    clock: Arc<dyn Clock>,
    state: Mutex<RenewedState<T>>,
}

struct RenewedState<T> {
    value: Option<(T, RenewalTimes)>,
    /// The failed requests since the last answer, and the last error.
    failure: Option<(Failures, ObjectError)>,
    request: Option<Awaited<T>>,
}

/// What a reader gets.
enum Read<T> {
    Now(Result<T, ObjectError>),
    AfterAnswer(Awaited<T>),
}

impl<T: Clone + PartialEq + Send + Sync + 'static> Renewed<T> {
    pub(super) fn new(kind: ObjectKind, clock: Arc<dyn Clock>) -> Self {
        let state = RenewedState { value: None, failure: None, request: None };
        Renewed { kind, clock, state: Mutex::new(state) }
    }

    /// Reads the value for a pod. `request` asks the API server for it. `changed` is called when a request for which the reader does not
    /// wait brings another value. Cancel safe: a request continues without its reader.
    pub(super) async fn get<R>(
        self: &Arc<Self>,
        uid: &PodUid,
        request: impl FnOnce() -> R,
        changed: impl FnOnce() + Send + 'static,
    ) -> Result<T, ObjectError>
    where
        R: Future<Output = Answer<T>> + Send + 'static,
    {
        match self.read(uid, request, changed) {
            Read::Now(value) => value,
            Read::AfterAnswer(mut answer) => {
                let answer = answer.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone());
                answer.unwrap_or(Err(ObjectError::NotYet(self.kind)))
            }
        }
    }

    fn read<R>(
        self: &Arc<Self>,
        uid: &PodUid,
        request: impl FnOnce() -> R,
        changed: impl FnOnce() + Send + 'static,
    ) -> Read<T>
    where
        R: Future<Output = Answer<T>> + Send + 'static,
    {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let times = state.value.as_ref().map(|(_, times)| *times);
        let failures = state.failure.as_ref().map(|(failures, _)| *failures);
        let plan = ReadPlan::of(now, times, failures);
        let is_under_way = state.request.as_ref().is_some_and(|request| request.has_changed().is_ok());
        if plan.request && !is_under_way {
            let changed = (!plan.wait).then_some(changed);
            state.request = Some(self.start(uid.clone(), request(), changed));
        }
        match state.request.clone().filter(|_| plan.wait) {
            Some(answer) => Read::AfterAnswer(answer),
            None => Read::Now(state.current(now, self.kind)),
        }
    }

    /// Starts a request in a task of its own.
    fn start(
        self: &Arc<Self>,
        uid: PodUid,
        request: impl Future<Output = Answer<T>> + Send + 'static,
        changed: Option<impl FnOnce() + Send + 'static>,
    ) -> Awaited<T> {
        let (answered, answer) = watch::channel(None);
        let value = self.clone();
        tokio::spawn(async move {
            let answer = request.await;
            let is_new = value.keep(&uid, &answer);
            answered.send_replace(Some(answer.map(|(value, _)| value)));
            if let Some(changed) = changed.filter(|_| is_new) {
                changed();
            }
        });
        answer
    }

    /// Keeps an answer. Returns whether it is another value than before. After an error, the value stays.
    fn keep(&self, uid: &PodUid, answer: &Answer<T>) -> bool {
        let now = self.clock.now();
        let mut state = self.state.lock();
        match answer {
            Ok((value, times)) => {
                state.failure = None;
                let before = state.value.replace((value.clone(), *times));
                before.is_none_or(|(before, _)| before != *value)
            }
            Err(error) => {
                let is_usable = state.value.as_ref().is_some_and(|(_, times)| times.is_usable(now));
                let earlier = state.failure.as_ref().map(|(failures, _)| *failures);
                let failures = Failures::after(earlier, now, is_usable);
                let text = error_chain(error);
                if is_usable && failures.is_first() {
                    tracing::warn!(pod.uid = %uid, error = %text, "cannot renew an object of a pod; the old one is kept");
                } else {
                    tracing::debug!(pod.uid = %uid, error = %text, "cannot request an object of a pod");
                }
                state.failure = Some((failures, error.clone()));
                false
            }
        }
    }
}

impl<T: Clone> RenewedState<T> {
    /// The value, or else the last error.
    fn current(&self, now: Time, kind: ObjectKind) -> Result<T, ObjectError> {
        match (&self.value, &self.failure) {
            (Some((value, times)), _) if times.is_usable(now) => Ok(value.clone()),
            (_, Some((_, error))) => Err(error.clone()),
            (_, None) => Err(ObjectError::NotYet(kind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use futures_util::FutureExt;
    use podwright_ports::TokioClock;
    use tokio::sync::oneshot;
    use tokio::time::{advance, sleep};

    use super::*;

    /// A number that an API server issues. Each is due after 100 s, and expires after 200 s.
    struct Rig {
        value: Arc<Renewed<u32>>,
        clock: TokioClock,
        requests: Arc<Mutex<VecDeque<oneshot::Sender<Answer<u32>>>>>,
        requested: Arc<AtomicUsize>,
        changes: Arc<AtomicUsize>,
    }

    fn error() -> ObjectError {
        ObjectError::unavailable(ObjectKind::Token, "default", "connection refused")
    }

    impl Rig {
        fn new() -> Self {
            let clock = TokioClock::starting_at(Time::from_secs(1_800_000_000));
            Rig {
                value: Arc::new(Renewed::new(ObjectKind::Token, Arc::new(clock))),
                clock,
                requests: Arc::default(),
                requested: Arc::default(),
                changes: Arc::default(),
            }
        }

        async fn read(&self) -> Result<u32, ObjectError> {
            let (requests, requested, changes) = (self.requests.clone(), self.requested.clone(), self.changes.clone());
            let request = move || async move {
                let (answer, answered) = oneshot::channel();
                requests.lock().push_back(answer);
                requested.fetch_add(1, Ordering::Relaxed);
                answered.await.unwrap()
            };
            let changed = move || {
                changes.fetch_add(1, Ordering::Relaxed);
            };
            self.value.get(&PodUid::new("pod"), request, changed).await
        }

        /// The answer of a read that does not wait.
        fn now(&self) -> Option<Result<u32, ObjectError>> {
            self.read().now_or_never()
        }

        /// Answers the oldest request.
        async fn answer(&self, answer: Result<u32, ObjectError>) {
            sleep(Duration::from_millis(1)).await;
            let now = self.clock.now();
            let after = |seconds| now + Duration::from_secs(seconds);
            let times = RenewalTimes { renew_from: after(100), expires: Some(after(200)) };
            let request = self.requests.lock().pop_front().expect("a request is under way");
            request.send(answer.map(|value| (value, times))).unwrap();
            sleep(Duration::from_millis(1)).await;
        }

        /// The number of requests, and of calls of `changed`.
        fn counts(&self) -> (usize, usize) {
            (self.requested.load(Ordering::Relaxed), self.changes.load(Ordering::Relaxed))
        }
    }

    /// A rig with the number 1, which is due.
    async fn due() -> Rig {
        let rig = Rig::new();
        let (first, second, ()) = tokio::join!(rig.read(), rig.read(), rig.answer(Ok(1)));
        assert_eq!((first, second, rig.counts()), (Ok(1), Ok(1), (1, 0)), "both readers wait for one request");
        advance(Duration::from_secs(100)).await;
        rig
    }

    #[tokio::test(start_paused = true)]
    async fn no_reader_waits_for_the_renewal_of_a_usable_value() {
        let rig = due().await;
        assert_eq!((rig.now(), rig.now()), (Some(Ok(1)), Some(Ok(1))));
        rig.answer(Ok(2)).await;
        assert_eq!(rig.counts(), (2, 1), "one renewal, and its pod is notified");
        assert_eq!((rig.now(), rig.counts()), (Some(Ok(2)), (2, 1)));
    }

    #[tokio::test(start_paused = true)]
    async fn failed_renewal_is_repeated_after_a_pause() {
        let rig = due().await;
        assert_eq!(rig.now(), Some(Ok(1)));
        rig.answer(Err(error())).await;
        assert_eq!((rig.now(), rig.counts()), (Some(Ok(1)), (2, 0)));
        advance(Duration::from_secs(1)).await;
        assert_eq!(rig.now(), Some(Ok(1)));
        rig.answer(Ok(1)).await;
        assert_eq!(rig.counts(), (3, 0), "the same value is no change");
    }

    #[tokio::test(start_paused = true)]
    async fn no_reader_waits_for_a_server_that_has_failed() {
        let rig = due().await;
        assert_eq!(rig.now(), Some(Ok(1)));
        rig.answer(Err(error())).await;
        advance(Duration::from_secs(100)).await;
        assert_eq!(rig.now(), Some(Err(error())), "the value has expired");
        rig.answer(Ok(2)).await;
        assert_eq!((rig.now(), rig.counts()), (Some(Ok(2)), (3, 1)));
    }

    #[tokio::test(start_paused = true)]
    async fn no_reader_waits_for_the_first_value_of_a_server_that_has_failed() {
        let rig = Rig::new();
        let (read, ()) = tokio::join!(rig.read(), rig.answer(Err(error())));
        assert_eq!((read, rig.counts()), (Err(error()), (1, 0)));
        advance(Duration::from_secs(1)).await;
        assert_eq!(rig.now(), Some(Err(error())));
        rig.answer(Ok(1)).await;
        assert_eq!((rig.now(), rig.counts()), (Some(Ok(1)), (2, 1)), "the pod is notified");
    }

    #[tokio::test(start_paused = true)]
    async fn reader_waits_for_another_value_than_an_expired_one() {
        let rig = due().await;
        advance(Duration::from_secs(100)).await;
        let (read, ()) = tokio::join!(rig.read(), rig.answer(Ok(2)));
        assert_eq!((read, rig.counts()), (Ok(2), (2, 0)));
    }

    #[tokio::test(start_paused = true)]
    async fn request_continues_without_its_reader() {
        let rig = Rig::new();
        assert_eq!(rig.now(), None);
        rig.answer(Ok(1)).await;
        assert_eq!((rig.now(), rig.counts()), (Some(Ok(1)), (1, 0)));
    }
}
