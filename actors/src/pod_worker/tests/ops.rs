//! What may happen to a pod, drawn at random.

use proptest::prelude::*;

use crate::ports::Observed;

#[derive(Clone, Debug)]
pub(super) enum Op {
    Update(Asked),
    Take(bool, Observed),
    /// The hook call ends in one of the ways it can; the number chooses.
    Done(u8),
    /// Seconds pass, and the alarm rings if it should.
    Advance(u64),
    Known(bool),
}

/// An update as it is generated.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) kind: u8,
    pub(super) deletion: Option<i64>,
    pub(super) ended: bool,
    pub(super) mirror: bool,
    pub(super) start_time: Option<u64>,
    pub(super) notifier: bool,
    pub(super) evict: bool,
    pub(super) grace: Option<i64>,
    pub(super) observed: Observed,
}

const PLAIN: Asked = Asked {
    kind: 0,
    deletion: None,
    ended: false,
    mirror: false,
    start_time: None,
    notifier: true,
    evict: false,
    grace: None,
    observed: Observed::Never,
};

impl Op {
    pub(super) fn create() -> Op {
        Op::Update(PLAIN)
    }

    pub(super) fn kill(grace: Option<i64>) -> Op {
        Op::Update(Asked { kind: 3, grace, ..PLAIN })
    }

    pub(super) fn kill_runtime() -> Op {
        Op::Update(Asked { kind: 4, grace: Some(1), ..PLAIN })
    }
}

fn observed() -> impl Strategy<Value = Observed> {
    prop_oneof![Just(Observed::Never), Just(Observed::Running), Just(Observed::Stopped)]
}

fn seconds() -> impl Strategy<Value = Option<i64>> {
    proptest::option::weighted(0.3, 0i64..40)
}

fn asked() -> impl Strategy<Value = Asked> {
    let flags = (proptest::bool::weighted(0.1), any::<bool>(), any::<bool>(), any::<bool>());
    let times = (proptest::option::weighted(0.15, 0i64..40), seconds(), proptest::option::of(0u64..50));
    (prop_oneof![4 => 0u8..3, 2 => Just(3u8), 1 => Just(4u8)], flags, times, observed()).prop_map(
        |(kind, (ended, mirror, notifier, evict), (deletion, grace, start_time), observed)| Asked {
            kind,
            deletion,
            ended,
            mirror,
            start_time,
            notifier,
            evict,
            grace,
            observed,
        },
    )
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => asked().prop_map(Op::Update),
        6 => (proptest::bool::weighted(0.7), observed()).prop_map(|(may, seen)| Op::Take(may, seen)),
        5 => any::<u8>().prop_map(Op::Done),
        2 => (0u64..100).prop_map(Op::Advance),
        2 => any::<bool>().prop_map(Op::Known),
    ]
}
