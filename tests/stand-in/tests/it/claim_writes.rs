//! How a claim with opaque parameters can be written. The codes are those of a server of version 1.36.

use podwright_stand_in::StandIn;
use serde_json::{Value, json};

use crate::http::Client;

const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The parameters as the first writer has sent them.
const SPELLINGS: [&str; 5] = [
    r#"{"apiVersion":"v1","kind":"P"}"#,
    r#"{"kind":"P","apiVersion":"v1"}"#,
    r#"{"kind":"P","apiVersion":"v1","b":"\u003c"}"#,
    r#"{"kind":"P","apiVersion":"v1","b":"<"}"#,
    r#"{"apiVersion": "v1", "kind": "P"}"#,
];

/// The ways to write: a merge patch, a JSON patch, a strategic patch, server-side apply, the text that the server has sent, the same
/// decoded and encoded, and the protobuf encoding.
const WRITES: [&str; 7] = ["merge", "json", "strategic", "apply", "text", "encoded", "protobuf"];

/// The codes for each spelling and each write.
const CODES: [[u16; 7]; 5] = [
    [200, 200, 200, 200, 200, 200, 200],
    [200, 200, 422, 422, 200, 422, 200],
    [200, 200, 422, 422, 200, 422, 200],
    [422, 422, 422, 422, 422, 422, 200],
    [422, 422, 422, 422, 422, 422, 200],
];

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = bytes.windows(from.len()).position(|window| window == from).expect("the bytes have the field");
    [&bytes[..at], to, &bytes[at + from.len()..]].concat()
}

/// A change of a claim in each form.
struct Write {
    path: String,
    merge: Value,
    json: Value,
    /// A part of the text of the claim, and what it becomes.
    text: (String, String),
    edit: fn(&mut Value),
    /// Encoded bytes of the claim, and what they become. Both have the same length, so that no length around them changes.
    encoded: (Vec<u8>, Vec<u8>),
}

impl Write {
    /// Sends the change, and returns the code of the answer.
    async fn send(&self, admin: &Client, claim: &str, form: &str) -> u16 {
        let (read, path) = (format!("{CLAIMS}/{claim}"), format!("{CLAIMS}/{claim}{}", self.path));
        let found = admin.get(&read).await;
        let (method, media_type, body) = match form {
            "merge" => ("PATCH", "application/merge-patch+json", self.merge.to_string().into_bytes()),
            "json" => ("PATCH", "application/json-patch+json", self.json.to_string().into_bytes()),
            "strategic" => ("PATCH", "application/strategic-merge-patch+json", self.merge.to_string().into_bytes()),
            "apply" => {
                let mut body = self.merge.clone();
                body["apiVersion"] = json!("resource.k8s.io/v1");
                body["kind"] = json!("ResourceClaim");
                body["metadata"] = json!({"name": claim, "labels": {"a": "b"}});
                ("PATCH", "application/apply-patch+yaml", body.to_string().into_bytes())
            }
            "text" => {
                let text = String::from_utf8(found.bytes.to_vec()).unwrap();
                assert!(text.contains(&self.text.0), "{text}");
                ("PUT", "application/json", text.replacen(&self.text.0, &self.text.1, 1).into_bytes())
            }
            "encoded" => {
                let mut body = found.body;
                (self.edit)(&mut body);
                ("PUT", "application/json", body.to_string().into_bytes())
            }
            _ => {
                let encoded = admin.accepting(PROTOBUF).get(&read).await.bytes;
                ("PUT", PROTOBUF, replaced(&encoded, &self.encoded.0, &self.encoded.1))
            }
        };
        let query = if form == "apply" { "?fieldManager=m&force=true" } else { "" };
        let reply = admin.send_bytes(method, &format!("{path}{query}"), media_type, body).await;
        if reply.code != 200 {
            assert!(reply.body["message"].as_str().unwrap().ends_with("field is immutable"), "{}", reply.body);
        }
        reply.code
    }
}

fn config(parameters: &str) -> String {
    format!(r#"[{{"opaque":{{"driver":"d.example.com","parameters":{parameters}}}}}]"#)
}

#[tokio::test]
async fn finalizers_are_removed_as_on_a_real_server() {
    let server = StandIn::start().await.unwrap();
    let admin = Client::admin(&server);
    let other = FINALIZER.replace("delete", "object");
    let encoded = |name: &str| [b"\x72\x28".as_slice(), name.as_bytes()].concat();
    let write = Write {
        path: String::new(),
        merge: json!({"metadata": {"finalizers": null}}),
        json: json!([{"op": "remove", "path": "/metadata/finalizers"}]),
        text: (format!(r#""finalizers":["{FINALIZER}"],"#), String::new()),
        edit: |claim| claim["metadata"]["finalizers"] = json!([]),
        encoded: (encoded(FINALIZER), encoded(&other)),
    };
    for (row, (parameters, codes)) in SPELLINGS.into_iter().zip(CODES).enumerate() {
        for (form, expected) in WRITES.into_iter().zip(codes) {
            let claim = format!("{form}-{row}");
            let config = config(parameters);
            let body = format!(
                r#"{{"metadata":{{"name":"{claim}","finalizers":["{FINALIZER}"]}},"spec":{{"devices":{{"config":{config}}}}}}}"#
            );
            assert_eq!(admin.send_bytes("POST", CLAIMS, "application/json", body).await.code, 201);
            assert_eq!(write.send(&admin, &claim, form).await, expected, "{form} of {parameters}");
        }
    }
}

#[tokio::test]
async fn reservations_are_removed_as_on_a_real_server() {
    let server = StandIn::start().await.unwrap();
    let admin = Client::admin(&server);
    let consumer = |uid: &str| json!({"resource": "pods", "name": uid, "uid": uid});
    let write = Write {
        path: "/status".to_owned(),
        merge: json!({"status": {"reservedFor": [consumer("u-a")]}}),
        json: json!([{"op": "remove", "path": "/status/reservedFor/1"}]),
        text: (format!(",{}", consumer("u-b")), String::new()),
        edit: |claim| claim["status"]["reservedFor"].as_array_mut().unwrap().truncate(1),
        encoded: (b"\x2a\x03u-b".to_vec(), b"\x2a\x03u-c".to_vec()),
    };
    for (row, (parameters, codes)) in SPELLINGS.into_iter().zip(CODES).enumerate() {
        for (form, expected) in WRITES.into_iter().zip(codes) {
            let claim = format!("{form}-{row}");
            let path = format!("{CLAIMS}/{claim}");
            assert_eq!(admin.post(CLAIMS, json!({"metadata": {"name": claim}, "spec": {}})).await.code, 201);
            // The first allocation may have any bytes.
            let (config, consumers) = (config(parameters), json!([consumer("u-a"), consumer("u-b")]));
            let body = format!(
                r#"{{"metadata":{{"name":"{claim}"}},"status":{{"allocation":{{"devices":{{"config":{config}}}}},"reservedFor":{consumers}}}}}"#
            );
            assert_eq!(admin.send_bytes("PUT", &format!("{path}/status"), "application/json", body).await.code, 200);
            assert_eq!(write.send(&admin, &claim, form).await, expected, "{form} of {parameters}");
        }
    }
}

#[tokio::test]
async fn only_protobuf_shows_the_bytes_of_parameters() {
    let server = StandIn::start().await.unwrap();
    let admin = Client::admin(&server);
    let (stored, shown) = (r#"{"b" : "<&>", "a": 1.0}"#, r#"{"b":"\u003c\u0026\u003e","a":1.0}"#);
    let config = config(stored);
    let body = format!(r#"{{"metadata":{{"name":"c"}},"spec":{{"devices":{{"config":{config}}}}}}}"#);
    let created = admin.send_bytes("POST", CLAIMS, "application/json", body).await;
    let has = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    let path = format!("{CLAIMS}/c");
    for json in [created, admin.get(&path).await, admin.get(CLAIMS).await] {
        assert!(has(&json.bytes, shown), "{}", json.body);
    }
    let encoded = admin.accepting(PROTOBUF).get(&path).await;
    assert!(encoded.bytes.starts_with(b"k8s\0") && has(&encoded.bytes, stored), "{encoded:?}");
    assert_eq!(encoded.headers["content-type"], PROTOBUF);
    let missing = admin.accepting(PROTOBUF).get(&format!("{CLAIMS}/none")).await;
    assert_eq!(missing.code, 404);
    assert!(has(&missing.bytes, "resourceclaims.resource.k8s.io \"none\" not found"), "{missing:?}");
    // A program in the process of the server sees what the bytes say.
    let claim = server.get("resourceclaims", "default", "c").unwrap();
    assert_eq!(claim["spec"]["devices"]["config"][0]["opaque"]["parameters"], json!({"a": 1.0, "b": "<&>"}));
}
