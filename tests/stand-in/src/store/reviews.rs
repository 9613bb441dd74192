//! Reviews of users and permissions.

use serde_json::{Value, json};

use super::{Answer, Env, Store};
use crate::access::{User, is_granted, node_authorizer_decision};
use crate::call::Call;
use crate::refusal::Refusal;

impl Store {
    pub(super) fn review(&mut self, call: &Call, env: &Env) -> Result<Answer, Refusal> {
        let mut body = call.body.clone();
        if !body.is_object() {
            body = json!({});
        }
        body["kind"] = json!(call.resource.kind);
        body["apiVersion"] = json!(call.resource.api_version());
        body["metadata"] = json!({});
        body["status"] = match call.resource.kind {
            "SelfSubjectReview" => json!({"userInfo": env.user.info()}),
            "TokenReview" => self.token_review(&body["spec"], env),
            "SelfSubjectAccessReview" => self.access(&env.user, &body["spec"], env),
            "SubjectAccessReview" | "LocalSubjectAccessReview" => {
                let spec = &body["spec"];
                let groups = spec["groups"].as_array().into_iter().flatten().filter_map(Value::as_str);
                let groups: Vec<&str> = groups.filter(|group| *group != "system:authenticated").collect();
                self.access(&User::new(spec["user"].as_str().unwrap_or_default(), &groups), spec, env)
            }
            _ => return Err(Refusal::no_such_path()),
        };
        Ok(Answer::Object(201, body))
    }

    fn token_review(&self, spec: &Value, env: &Env) -> Value {
        let failed = |error: &str| json!({"user": {}, "error": error});
        let Some(user) = self.tokens.get(spec["token"].as_str().unwrap_or_default()) else {
            return failed("invalid bearer token");
        };
        if user.expires.is_some_and(|end| end <= env.now) {
            return failed("[invalid bearer token, service account token has expired]");
        }
        if let Some(pod) = user.extra["authentication.kubernetes.io/pod-uid"][0].as_str()
            && !self.uids.contains_key(pod)
        {
            return failed("[invalid bearer token, service account token has been invalidated]");
        }
        let requested = spec["audiences"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let requested: Vec<&str> = requested.collect();
        let own = "https://kubernetes.default.svc".to_owned();
        let valid = if user.audiences.is_empty() { vec![own.clone()] } else { user.audiences.clone() };
        let accepted = if requested.is_empty() { vec![own.as_str()] } else { requested };
        let audiences: Vec<&String> = valid.iter().filter(|audience| accepted.contains(&audience.as_str())).collect();
        if audiences.is_empty() {
            return failed("[invalid bearer token, token audiences do not match]");
        }
        json!({"authenticated": true, "user": user.info(), "audiences": audiences})
    }

    fn access(&self, user: &User, spec: &Value, env: &Env) -> Value {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let resource = &spec["resourceAttributes"];
        let path = match (text(&resource["resource"]), text(&resource["subresource"])) {
            (path, below) if below.is_empty() => path,
            (path, below) => format!("{path}/{below}"),
        };
        let (verb, path) = if resource.is_object() {
            (text(&resource["verb"]), path)
        } else {
            (text(&spec["nonResourceAttributes"]["verb"]), text(&spec["nonResourceAttributes"]["path"]))
        };
        if is_granted(self, user, &verb, &path) {
            return json!({"allowed": true, "reason": "the stand-in grants it"});
        }
        match Call::of_attributes(resource).and_then(|call| node_authorizer_decision(self, user, &call, env.now)) {
            Some(Ok(())) => json!({"allowed": true}),
            Some(Err(reason)) if !reason.is_empty() => json!({"allowed": false, "reason": reason}),
            Some(Err(_)) | None => json!({"allowed": false}),
        }
    }
}
