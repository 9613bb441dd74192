//! Counts what is open of each pod and each namespace, and decides whether one more may be. Pure.

use std::collections::HashMap;

use podwright_metrics::NodeApiLimit;
use podwright_model::ids::FullName;

/// How many streams or logs may be open at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareLimits {
    /// Of one pod.
    pub pod: usize,
    /// Of the pods of one namespace.
    pub namespace: usize,
    /// Of all pods of the node.
    pub node: usize,
    /// How many of those of the node only a namespace gets that has none open. So a few namespaces cannot take all of them.
    pub reserve: usize,
}

impl ShareLimits {
    /// Limits that do not distinguish pods and namespaces.
    pub fn of_node(most: usize) -> Self {
        ShareLimits { pod: most, namespace: most, node: most, reserve: 0 }
    }
}

/// What is open. A pod or a namespace without any is absent.
#[derive(Debug, Default)]
pub(super) struct ShareTable {
    pods: HashMap<FullName, usize>,
    namespaces: HashMap<String, usize>,
    node: usize,
}

impl ShareTable {
    /// Counts one more of a pod.
    ///
    /// # Errors
    /// The limit that leaves no room. Nothing is counted then.
    pub(super) fn take(&mut self, limits: ShareLimits, pod: &FullName) -> Result<(), NodeApiLimit> {
        let of_pod = self.pods.get(pod).copied().unwrap_or(0);
        let of_namespace = self.namespaces.get(pod.namespace()).copied().unwrap_or(0);
        let kept_free = if of_namespace == 0 { 0 } else { limits.reserve };
        if of_pod >= limits.pod {
            return Err(NodeApiLimit::Pod);
        }
        if of_namespace >= limits.namespace {
            return Err(NodeApiLimit::Namespace);
        }
        if self.node + kept_free >= limits.node {
            return Err(NodeApiLimit::Node);
        }
        self.pods.insert(pod.clone(), of_pod + 1);
        self.namespaces.insert(pod.namespace().to_owned(), of_namespace + 1);
        self.node += 1;
        Ok(())
    }

    /// Counts one less of a pod.
    pub(super) fn give_back(&mut self, pod: &FullName) {
        if let Some(count) = self.pods.get_mut(pod) {
            *count -= 1;
            if *count == 0 {
                self.pods.remove(pod);
            }
        }
        if let Some(count) = self.namespaces.get_mut(pod.namespace()) {
            *count -= 1;
            if *count == 0 {
                self.namespaces.remove(pod.namespace());
            }
        }
        self.node = self.node.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ShareLimits = ShareLimits { pod: 2, namespace: 3, node: 6, reserve: 2 };

    #[test]
    fn the_first_limit_without_room_is_named() {
        use NodeApiLimit::{Namespace, Node, Pod};
        let mut table = ShareTable::default();
        for (step, (namespace, name, expected)) in [
            ("a", "p", Ok(())),
            ("a", "p", Ok(())),
            ("a", "p", Err(Pod)),
            ("a", "q", Ok(())),
            ("a", "q", Err(Namespace)),
            ("a", "r", Err(Namespace)),
            ("b", "p", Ok(())),
            // The last two are for namespaces that have none.
            ("b", "p", Err(Node)),
            ("c", "p", Ok(())),
            ("c", "q", Err(Node)),
            ("d", "p", Ok(())),
            ("e", "p", Err(Node)),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(table.take(LIMITS, &FullName::new(namespace, name)), expected, "step {step}");
        }
    }

    #[test]
    fn what_is_given_back_is_free_and_leaves_no_entry() {
        let (mut table, mut open) = (ShareTable::default(), Vec::new());
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2000 {
            let pod = FullName::new(["a", "b", "c"][random.usize(..3)], ["p", "q", "r"][random.usize(..3)]);
            if random.bool() {
                if table.take(LIMITS, &pod).is_ok() {
                    open.push(pod);
                }
            } else if !open.is_empty() {
                table.give_back(&open.swap_remove(random.usize(..open.len())));
            }
            let count = |is: &dyn Fn(&&FullName) -> bool| open.iter().filter(is).count();
            assert_eq!(table.node, open.len());
            assert!(table.pods.iter().all(|(own, held)| count(&|pod| *pod == own) == *held && *held <= LIMITS.pod));
            let of_namespace = |(own, held): (&String, &usize)| {
                count(&|pod| pod.namespace() == own) == *held && *held <= LIMITS.namespace
            };
            assert!(table.namespaces.iter().all(of_namespace));
        }
        open.iter().for_each(|pod| table.give_back(pod));
        assert!(table.pods.is_empty() && table.namespaces.is_empty() && table.node == 0);
    }

    #[test]
    fn limits_of_the_node_alone_distinguish_no_pods() {
        let mut table = ShareTable::default();
        let pod = FullName::new("a", "p");
        assert!((0..5).all(|_| table.take(ShareLimits::of_node(5), &pod).is_ok()));
        assert!(table.take(ShareLimits::of_node(5), &FullName::new("b", "p")).is_err());
    }
}
