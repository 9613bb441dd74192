//! Several candidates with clocks of their own, calls that arrive late or never, and lost answers: at most one leads by its clock.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const CANDIDATES: usize = 3;

#[derive(Clone, Debug)]
enum Action {
    /// Time passes.
    Pass { millis: u16 },
    /// A candidate begins an attempt, if it has no open call. `forgets` ends its open call without an answer.
    Due { candidate: usize, forgets: bool },
    /// The server performs a call that was sent.
    Perform { call: usize },
    /// A candidate gets the answer of its open call, if it was performed.
    Answer { candidate: usize },
    /// A candidate gives the lease back, and a new process with another identity follows.
    Restart { candidate: usize },
    /// A candidate ends without giving the lease back, and a new process follows.
    Crash { candidate: usize },
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let candidate = || 0..CANDIDATES;
    let action = prop_oneof![
        6 => (1..4000_u16).prop_map(|millis| Action::Pass { millis }),
        6 => (candidate(), prop::bool::weighted(0.2)).prop_map(|(candidate, forgets)| Action::Due { candidate, forgets }),
        10 => (0..4_usize).prop_map(|call| Action::Perform { call }),
        10 => candidate().prop_map(|candidate| Action::Answer { candidate }),
        1 => candidate().prop_map(|candidate| Action::Restart { candidate }),
        1 => candidate().prop_map(|candidate| Action::Crash { candidate }),
    ];
    proptest::collection::vec(action, 0..300)
}

/// A call on its way to the server. The server performs it at any later time, or never.
#[derive(Debug)]
struct Sent {
    number: u64,
    call: Call,
}

struct Process {
    candidate: Candidate,
    /// How far its clock is ahead of the time of the model.
    ahead: Duration,
    /// The open call with the time at which it was sent, and its answer.
    open: Option<(u64, Call, Time)>,
    answer: Option<Result<Lease, CallFailure>>,
}

struct Model {
    now: Duration,
    server: Server,
    on_the_way: Vec<Sent>,
    processes: Vec<Process>,
    number: u64,
    /// The number of times that a candidate became the leader.
    elections: usize,
}

impl Model {
    fn new() -> Self {
        let mut model = Model {
            now: Duration::ZERO,
            server: Server::default(),
            on_the_way: Vec::new(),
            processes: Vec::new(),
            number: 0,
            elections: 0,
        };
        model.processes = (0..CANDIDATES).map(|at| model.process(at)).collect();
        model
    }

    fn process(&mut self, at: usize) -> Process {
        self.number += 1;
        let candidate = Candidate::new(format!("replica-{at}-{}", self.number), name(), Timing::default());
        // Wall clocks and monotonic clocks of machines have nothing in common.
        Process { candidate, ahead: Duration::from_secs(7919 * at as u64), open: None, answer: None }
    }

    fn local(&self, at: usize) -> Moment {
        let local = Time::ZERO + self.now + self.processes[at].ahead;
        Moment { local, wall: local }
    }

    fn act(&mut self, action: &Action) {
        match *action {
            Action::Pass { millis } => self.now += Duration::from_millis(millis.into()),
            Action::Due { candidate, forgets } => {
                if forgets && let Some((_, call, sent)) = self.processes[candidate].open.take() {
                    self.processes[candidate].answer = None;
                    let failed = Event::Answered { call, sent, answer: Err(CallFailure::Other) };
                    self.step(candidate, failed);
                }
                if self.processes[candidate].open.is_none() {
                    self.step(candidate, Event::Due);
                }
            }
            Action::Perform { call } => {
                if self.on_the_way.is_empty() {
                    return;
                }
                let Sent { number, call } = self.on_the_way.remove(call % self.on_the_way.len());
                let answer = self.server.perform(&call);
                let caller = self
                    .processes
                    .iter_mut()
                    .find(|process| process.open.as_ref().is_some_and(|open| open.0 == number));
                if let Some(caller) = caller {
                    caller.answer = Some(answer);
                }
            }
            Action::Answer { candidate } => {
                if let Some(answer) = self.processes[candidate].answer.take()
                    && let Some((_, call, sent)) = self.processes[candidate].open.take()
                {
                    self.step(candidate, Event::Answered { call, sent, answer: answer.map(Box::new) });
                }
            }
            Action::Restart { candidate } => {
                let now = self.local(candidate);
                if let Next::Call(call) = self.processes[candidate].candidate.step(Event::Release, now) {
                    self.number += 1;
                    self.on_the_way.push(Sent { number: self.number, call });
                }
                self.processes[candidate] = self.process(candidate);
            }
            Action::Crash { candidate } => self.processes[candidate] = self.process(candidate),
        }
    }

    fn step(&mut self, at: usize, event: Event) {
        let now = self.local(at);
        let led = self.processes[at].candidate.leads(now.local);
        let next = self.processes[at].candidate.step(event, now);
        self.elections += usize::from(!led && self.processes[at].candidate.leads(now.local));
        if let Next::Call(call) = next {
            self.number += 1;
            self.processes[at].open = Some((self.number, call.clone(), now.local));
            self.on_the_way.push(Sent { number: self.number, call });
        }
    }

    fn leaders(&self) -> Vec<&str> {
        let leads = |at: &usize| self.processes[*at].candidate.leads(self.local(*at).local);
        (0..CANDIDATES).filter(leads).map(|at| self.processes[at].candidate.identity()).collect()
    }
}

proptest! {
    #![proptest_config(podwright_random::cases(1000))]

    #[test]
    fn at_most_one_candidate_leads_by_its_clock(actions in actions()) {
        let mut model = Model::new();
        for action in &actions {
            model.act(action);
            let leaders = model.leaders();
            prop_assert!(leaders.len() <= 1, "{leaders:?} after {action:?}");
        }
        // With a good connection, one of them leads in the end.
        model.on_the_way.clear();
        for _ in 0..60 {
            model.act(&Action::Pass { millis: 500 });
            for candidate in 0..CANDIDATES {
                model.act(&Action::Due { candidate, forgets: true });
                while model.processes[candidate].open.is_some() {
                    model.act(&Action::Perform { call: 0 });
                    model.act(&Action::Answer { candidate });
                }
            }
        }
        prop_assert_eq!(model.leaders().len(), 1);
        prop_assert!(model.elections > 0);
    }
}
