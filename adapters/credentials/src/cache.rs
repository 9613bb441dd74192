//! Keeps the answers of one plugin. Pure.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use podwright_model::ids::PodUid;
use podwright_model::time::Time;
use podwright_ports::ServiceAccountIdentity;

use super::protocol::{Auth, CacheKeyType};

/// How often the answers that nobody asks for any more are removed (upstream `cachePurgeInterval`, kubelet 1.36).
const PURGE_EVERY: Duration = Duration::from_secs(15 * 60);
/// The most answers that are kept. Another answer is not kept, and the plugin is called again.
const MAX_ANSWERS: usize = 10_000;

/// The credentials of an answer, by scope.
pub(crate) type Credentials = Arc<BTreeMap<String, Auth>>;

/// For whom a plugin is called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Caller {
    pub(crate) account: ServiceAccountIdentity,
    /// The annotations that the plugin gets.
    pub(crate) annotations: BTreeMap<String, String>,
    /// The pod and the hash of its token, if no two pods share an answer.
    pub(crate) token: Option<(PodUid, String)>,
}

/// The answers of one plugin.
#[derive(Debug)]
pub(crate) struct Cache {
    answers: HashMap<Key, CachedAnswer>,
    purge_at: Time,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    images: Images,
    /// `None` if every pod of the node shares the answer.
    caller: Option<Caller>,
}

/// The images that share an answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Images {
    One(String),
    OfRegistry(String),
    All,
}

#[derive(Debug)]
struct CachedAnswer {
    credentials: Credentials,
    expires: Time,
}

impl Cache {
    pub(crate) fn new(now: Time) -> Self {
        Cache { answers: HashMap::new(), purge_at: now + PURGE_EVERY }
    }

    /// The kept answer for a repository: that for the image itself, else that for its registry, else that for all images.
    pub(crate) fn get(&mut self, repository: &str, caller: Option<&Caller>, now: Time) -> Option<Credentials> {
        self.purge(now);
        [CacheKeyType::Image, CacheKeyType::Registry, CacheKeyType::Global].into_iter().find_map(|key_type| {
            let key = Key { images: Images::of(key_type, repository), caller: caller.cloned() };
            let answer = self.answers.get(&key).filter(|answer| now < answer.expires)?;
            Some(Arc::clone(&answer.credentials))
        })
    }

    /// Keeps an answer for a time.
    pub(crate) fn insert(
        &mut self,
        (repository, key_type): (&str, CacheKeyType),
        caller: Option<&Caller>,
        credentials: Credentials,
        (now, duration): (Time, Duration),
    ) {
        if duration.is_zero() || self.answers.len() >= MAX_ANSWERS && !self.makes_room(now) {
            return;
        }
        let key = Key { images: Images::of(key_type, repository), caller: caller.cloned() };
        self.answers.insert(key, CachedAnswer { credentials, expires: now + duration });
    }

    fn purge(&mut self, now: Time) {
        if now >= self.purge_at {
            self.makes_room(now);
            self.purge_at = now + PURGE_EVERY;
        }
    }

    /// Removes the expired answers. Returns whether there is room for another one.
    fn makes_room(&mut self, now: Time) -> bool {
        self.answers.retain(|_, answer| now < answer.expires);
        self.answers.len() < MAX_ANSWERS
    }
}

impl Images {
    fn of(key_type: CacheKeyType, repository: &str) -> Self {
        match key_type {
            CacheKeyType::Image => Images::One(repository.to_owned()),
            CacheKeyType::Registry => Images::OfRegistry(repository.split('/').next().unwrap_or_default().to_owned()),
            CacheKeyType::Global => Images::All,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_secs(1_800_000_000);
    const MINUTE: Duration = Duration::from_secs(60);

    fn credentials(user: &str) -> Credentials {
        let auth = Auth { username: user.to_owned(), password: String::new() };
        Arc::new(BTreeMap::from([("r.example".to_owned(), auth)]))
    }

    fn caller(name: &str, token: Option<&str>) -> Caller {
        let account = ServiceAccountIdentity { namespace: "ns".into(), name: name.into(), uid: format!("uid-{name}") };
        let token = token.map(|token| (PodUid::new("pod"), token.to_owned()));
        Caller { account, annotations: BTreeMap::new(), token }
    }

    fn user(found: Option<Credentials>) -> Option<String> {
        found.map(|credentials| credentials["r.example"].username.clone())
    }

    #[test]
    fn an_answer_is_shared_by_the_images_that_it_names() {
        for (key_type, same_registry, other) in [
            (CacheKeyType::Image, false, false),
            (CacheKeyType::Registry, true, false),
            (CacheKeyType::Global, true, true),
        ] {
            let mut cache = Cache::new(NOW);
            cache.insert(("r.example:5000/a", key_type), None, credentials("u"), (NOW, MINUTE));
            let mut has = |repository| cache.get(repository, None, NOW).is_some();
            assert!(has("r.example:5000/a"), "{key_type:?}");
            let found = (has("r.example:5000/b/c"), has("r.example/a"));
            assert_eq!(found, (same_registry, other), "{key_type:?}");
        }
    }

    #[test]
    fn the_answer_for_fewer_images_comes_first() {
        let mut cache = Cache::new(NOW);
        for (key_type, name) in
            [(CacheKeyType::Global, "all"), (CacheKeyType::Registry, "registry"), (CacheKeyType::Image, "image")]
        {
            cache.insert(("r.example/a", key_type), None, credentials(name), (NOW, MINUTE));
        }
        let mut found = |repository| user(cache.get(repository, None, NOW));
        let found = [found("r.example/a"), found("r.example/b"), found("q.example/a")].map(Option::unwrap_or_default);
        assert_eq!(found, ["image", "registry", "all"]);
    }

    #[test]
    fn an_answer_is_kept_until_it_expires() {
        let mut cache = Cache::new(NOW);
        cache.insert(("r.example/a", CacheKeyType::Image), None, credentials("never"), (NOW, Duration::ZERO));
        assert_eq!(cache.get("r.example/a", None, NOW), None);
        cache.insert(("r.example/a", CacheKeyType::Image), None, credentials("u"), (NOW, MINUTE));
        assert!(cache.get("r.example/a", None, NOW + Duration::from_secs(59)).is_some());
        assert_eq!(cache.get("r.example/a", None, NOW + MINUTE), None);
        assert_eq!(cache.answers.len(), 1);
        assert_eq!(cache.get("r.example/b", None, NOW + PURGE_EVERY), None);
        assert_eq!(cache.answers.len(), 0, "expired answers are removed from time to time");
    }

    #[test]
    fn an_answer_for_an_account_is_not_for_others() {
        let mut cache = Cache::new(NOW);
        let (a, with_token) = (caller("a", None), caller("a", Some("1")));
        cache.insert(("r.example/a", CacheKeyType::Global), Some(&a), credentials("a"), (NOW, MINUTE));
        let annotated = Caller { annotations: BTreeMap::from([("role".into(), "x".into())]), ..a.clone() };
        for other in [None, Some(&caller("b", None)), Some(&annotated), Some(&with_token)] {
            assert_eq!(cache.get("r.example/a", other, NOW), None, "{other:?}");
        }
        assert!(cache.get("r.example/a", Some(&a), NOW).is_some());
        cache.insert(("r.example/a", CacheKeyType::Global), Some(&with_token), credentials("t"), (NOW, MINUTE));
        assert_eq!(cache.get("r.example/a", Some(&caller("a", Some("2"))), NOW), None, "another token");
    }

    #[test]
    fn the_number_of_answers_is_limited() {
        let mut cache = Cache::new(NOW);
        let mut insert = |n: usize, now| {
            let repository = format!("r.example/{n}");
            cache.insert((&repository, CacheKeyType::Image), None, credentials("u"), (now, MINUTE));
            cache.get(&repository, None, now).is_some()
        };
        assert!((0..MAX_ANSWERS).all(|n| insert(n, NOW)));
        assert!(!insert(MAX_ANSWERS, NOW));
        assert!(insert(MAX_ANSWERS, NOW + MINUTE), "the others have expired");
    }
}
