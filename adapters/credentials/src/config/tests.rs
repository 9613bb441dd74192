//! Tests of the configuration.

use serde_json::{Value, json};

use super::*;

const FULL: &str = "
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: ecr-login
  matchImages:
  - '*.dkr.registry.example'
  - registry.example:5000/team
  defaultCacheDuration: 1h30m0s
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  args: [get-credentials, -v]
  env:
  - {name: REGION, value: west}
  tokenAttributes:
    serviceAccountTokenAudience: registry.example
    cacheType: ServiceAccount
    requireServiceAccount: true
    requiredServiceAccountAnnotationKeys: [registry.example/Role]
    optionalServiceAccountAnnotationKeys: [registry.example/tenant]
";

fn minimal() -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig",
        "providers": [{
            "name": "p", "matchImages": ["r.example"], "defaultCacheDuration": "0s",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        }],
    })
}

fn parse_json(config: &Value) -> Result<Vec<Provider>, ConfigError> {
    parse(config.to_string().as_bytes())
}

#[test]
fn all_fields_are_read() {
    let token = TokenSettings {
        audience: "registry.example".into(),
        cache_type: TokenCacheType::ServiceAccount,
        requires_account: true,
        required_annotations: vec!["registry.example/Role".into()],
        optional_annotations: vec!["registry.example/tenant".into()],
    };
    let expected = Provider {
        name: "ecr-login".into(),
        match_images: vec!["*.dkr.registry.example".into(), "registry.example:5000/team".into()],
        default_cache_duration: Duration::from_secs(5400),
        version: ProtocolVersion::V1,
        args: vec!["get-credentials".into(), "-v".into()],
        env: vec![("REGION".into(), "west".into())],
        token: Some(token),
    };
    assert_eq!(parse(FULL.as_bytes()), Ok(vec![expected]));
}

#[test]
fn all_versions_are_read() {
    for version in CONFIG_VERSIONS {
        for protocol in ProtocolVersion::ALL {
            let mut config = minimal();
            config["apiVersion"] = version.into();
            config["providers"][0]["apiVersion"] = protocol.as_str().into();
            let providers = parse_json(&config).unwrap();
            assert_eq!((providers[0].version, &providers[0].token), (protocol, &None), "{version}");
        }
    }
}

#[test]
fn unknown_and_doubled_fields_are_refused() {
    for (text, says) in [
        (FULL.replace("args:", "arg:"), "arg"),
        (FULL.replace("cacheType:", "cachetype:"), "cachetype"),
        (FULL.replace("  args:", "  name: again\n  args:"), "name"),
        (FULL.replace("ServiceAccount\n", "Pod\n"), "Pod"),
        (minimal().to_string().replace("\"name\"", "\"name\": \"a\", \"name\""), "name"),
        ("{".to_owned(), ""),
    ] {
        let error = parse(text.as_bytes()).unwrap_err();
        assert!(matches!(&error, ConfigError::Syntax(text) if text.contains(says)), "{error}");
    }
    let other = FULL.replace("CredentialProviderConfig", "KubeletConfiguration");
    assert!(matches!(parse(other.as_bytes()), Err(ConfigError::Kind { .. })));
    let other = FULL.replace("kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v2");
    assert!(matches!(parse(other.as_bytes()), Err(ConfigError::Kind { .. })));
}

#[test]
fn a_fault_names_the_plugin_the_field_and_the_remedy() {
    let attributes = json!({
        "serviceAccountTokenAudience": "a", "cacheType": "Token", "requireServiceAccount": false,
    });
    let token = |field: &str, value: Value| {
        let mut attributes = attributes.clone();
        attributes[field] = value;
        ("tokenAttributes", attributes)
    };
    for ((field, value), says) in [
        (("name", json!("a/b")), "without / and spaces"),
        (("name", json!("..")), "without / and spaces"),
        (("name", json!("")), "without / and spaces"),
        (("apiVersion", json!("credentialprovider.kubelet.k8s.io/v2")), "apiVersion: not known"),
        (("matchImages", json!([])), "name at least one image"),
        (("matchImages", json!(["https://r.example"])), "without a scheme"),
        (("defaultCacheDuration", Value::Null), "defaultCacheDuration: missing"),
        (("defaultCacheDuration", json!("-1s")), "from 0"),
        (("defaultCacheDuration", json!("soon")), "from 0"),
        (("env", json!([{"name": "A=B", "value": ""}])), "env: a name"),
        (token("serviceAccountTokenAudience", json!("")), "serviceAccountTokenAudience: missing"),
        (token("cacheType", Value::Null), "cacheType: missing"),
        (token("requireServiceAccount", Value::Null), "requireServiceAccount: missing"),
        (token("requiredServiceAccountAnnotationKeys", json!(["a"])), "needs requireServiceAccount: true"),
        (token("optionalServiceAccountAnnotationKeys", json!(["a b"])), "not a key of an annotation"),
        (token("optionalServiceAccountAnnotationKeys", json!(["a", "a"])), "is there twice"),
    ] {
        let mut config = minimal();
        config["providers"][0][field] = value;
        let error = parse_json(&config).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, ConfigError::Field { .. }) && text.contains(says), "{field}: {text}");
    }
    let mut config = minimal();
    config["providers"][0]["apiVersion"] = ProtocolVersion::V1Beta1.as_str().into();
    config["providers"][0]["tokenAttributes"] = attributes;
    assert!(parse_json(&config).unwrap_err().to_string().contains("change the apiVersion"));
}

#[test]
fn the_files_of_a_directory_have_each_plugin_once() {
    let provider = || parse_json(&minimal()).unwrap();
    assert_eq!(join([provider(), vec![]]), Ok(provider()));
    assert_eq!(join([provider(), provider()]), Err(ConfigError::Twice("p".into())));
    assert_eq!(join([vec![], vec![]]), Err(ConfigError::NoProviders));
}

#[test]
fn durations_have_the_form_of_go() {
    let parsed = ["0", "0s", "1.5h", "1h0m30s", "300ms"].map(cache_duration);
    let millis = [0, 0, 5_400_000, 3_630_000, 300].map(|millis| Some(Duration::from_millis(millis)));
    assert_eq!(parsed, millis);
    assert_eq!(["-1s", "1", ""].map(cache_duration), [None; 3]);
}
