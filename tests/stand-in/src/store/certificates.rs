//! Approves and signs certificate signing requests, as kube-controller-manager does.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{Env, Store};
use crate::access::{User, is_granted};
use crate::refusal::Refusal;
use crate::schema::{self, Resource};
use crate::signing::{self, SigningRequest};

/// The certificate signing requests that the server approves itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Approval {
    /// Valid requests of kubelets, both for client and for serving certificates.
    #[default]
    Kubelets,
    /// Valid requests of kubelets for client certificates, as kube-controller-manager does. Serving certificates wait for
    /// the test.
    KubeletClients,
    /// None.
    Nothing,
}

impl Store {
    /// Writes the user into a new request.
    pub(super) fn admit_signing_request(
        &self,
        resource: &Resource,
        object: &mut Value,
        env: &Env,
    ) -> Result<(), Refusal> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let user = env.user.info();
        for (field, source) in [("username", "username"), ("uid", "uid"), ("groups", "groups"), ("extra", "extra")] {
            match user.get(source) {
                Some(value) => object["spec"][field] = value.clone(),
                None => {
                    object["spec"].as_object_mut().expect("a request has a spec").remove(field);
                }
            }
        }
        let is_admin = |request: &SigningRequest| request.organizations.iter().any(|group| group == "system:masters");
        if object["spec"]["signerName"] == signing::CLIENT
            && SigningRequest::parse(&object["spec"]["request"]).is_ok_and(|request| is_admin(&request))
        {
            let why = format!("use of {} signer with system:masters group is not allowed", signing::CLIENT);
            return Err(Refusal::forbidden(resource, &name, &why));
        }
        Ok(())
    }

    /// Keeps the parts of a request that its writer may not change, and dates new conditions.
    pub(super) fn admit_signing_change(live: &Value, object: &mut Value, env: &Env) {
        object["spec"] = live["spec"].clone();
        for condition in object["status"]["conditions"].as_array_mut().into_iter().flatten() {
            for field in ["lastUpdateTime", "lastTransitionTime"] {
                if condition[field].is_null() {
                    condition[field] = json!(env.now_text());
                }
            }
        }
    }

    /// Approves requests, and signs the approved ones.
    pub(super) fn sign_requests(&mut self, now: jiff::Timestamp) {
        let resource = schema::stored("certificatesigningrequests").expect("the table has signing requests");
        let pending: Vec<Value> = self
            .stored(resource.storage)
            .filter(|(_, object)| {
                object["status"]["certificate"].is_null()
                    && !signing::has_condition(object, "Denied")
                    && !signing::has_condition(object, "Failed")
            })
            .map(|(_, object)| Value::clone(object))
            .collect();
        for mut object in pending {
            let Ok(request) = SigningRequest::parse(&object["spec"]["request"]) else { continue };
            let is_approved = signing::has_condition(&object, "Approved");
            if !is_approved {
                let Some(message) = self.approval(&object, &request) else { continue };
                add_condition(&mut object, "Approved", "AutoApproved", message, now);
            }
            if self.sign(&mut object, &request, now) || !is_approved {
                self.put(resource, object, now);
            }
        }
    }

    /// The message of an approval, if the server approves the request itself.
    fn approval(&self, object: &Value, request: &SigningRequest) -> Option<&'static str> {
        let spec = &object["spec"];
        let signer = spec["signerName"].as_str().unwrap_or_default();
        request.check(signer, &signing::usages(spec)).ok()?;
        let groups: Vec<&str> = spec["groups"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let user = User::new(spec["username"].as_str().unwrap_or_default(), &groups);
        let is_own = user.name == request.common_name;
        let may = |path: &str| is_granted(self, &user, "create", &format!("certificatesigningrequests/{path}"));
        match (self.settings.approval, signer) {
            (Approval::Nothing, _) | (Approval::KubeletClients, signing::KUBELET_SERVING) => None,
            (_, signing::KUBELET_CLIENT) if is_own && may("selfnodeclient") => {
                Some("Auto approving self kubelet client certificate after SubjectAccessReview.")
            }
            (_, signing::KUBELET_CLIENT) if may("nodeclient") => {
                Some("Auto approving kubelet client certificate after SubjectAccessReview.")
            }
            (_, signing::KUBELET_SERVING) if is_own => {
                Some("the stand-in approves the serving certificate of a kubelet")
            }
            _ => None,
        }
    }

    /// Adds the certificate or the reason of the failure. Returns whether the object has changed.
    fn sign(&self, object: &mut Value, request: &SigningRequest, now: jiff::Timestamp) -> bool {
        let spec = &object["spec"];
        let usages = signing::usages(spec);
        let longest = self.settings.certificate_life;
        let life = spec["expirationSeconds"].as_u64().map_or(longest, Duration::from_secs).min(longest);
        let signed = match request.check(spec["signerName"].as_str().unwrap_or_default(), &usages) {
            Ok(false) => return false,
            Ok(true) => self.authority.sign(request, &usages, life, now),
            Err(why) => Err(why),
        };
        match signed {
            Ok(pem) => object["status"]["certificate"] = json!(STANDARD.encode(pem)),
            Err(why) => add_condition(object, "Failed", "SignerValidationFailure", &why, now),
        }
        true
    }
}

fn add_condition(object: &mut Value, kind: &str, reason: &str, message: &str, now: jiff::Timestamp) {
    let time = super::time_text(now);
    let condition = json!({
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastUpdateTime": time,
        "lastTransitionTime": time,
    });
    match object["status"]["conditions"].as_array_mut() {
        Some(conditions) => conditions.push(condition),
        None => object["status"]["conditions"] = json!([condition]),
    }
}
