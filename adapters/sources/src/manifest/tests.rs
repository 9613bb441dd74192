use super::*;

const POD: &str = "apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  containers:
  - name: c
    image: busybox
";

/// The manifest with one more line in its container: line 9.
fn with(line: &str) -> String {
    format!("{POD}    {line}\n")
}

fn faults(text: &str) -> Vec<String> {
    read_with(text.as_bytes(), UnknownFields::Refuse).faults.iter().map(ToString::to_string).collect()
}

fn names(text: &str) -> Vec<String> {
    let manifest = read(text.as_bytes());
    assert_eq!(manifest.faults, [], "{text}");
    manifest.pods.into_iter().filter_map(|pod| pod.metadata.name).collect()
}

#[test]
fn manifest_of_every_form_yields_its_pods() {
    let json = "{\n\t\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"web\"},\n\
                \t\"spec\": {\"containers\": [{\"name\": \"c\", \"image\": \"a\"}]}\n}";
    let item = "{kind: Pod, apiVersion: v1, metadata: {name: web}, spec: {containers: [{name: a, image: b}]}}";
    let cases = [
        (POD.to_owned(), 1),
        (json.to_owned(), 1),
        (format!("\u{feff}{POD}"), 1),
        (POD.replace('\n', "\r\n"), 1),
        (format!("---\n{POD}---\n# nothing here\n---\n{POD}---\n"), 2),
        (format!("apiVersion: v1\nkind: List\nitems:\n- {item}\n- {item}\n"), 2),
        (format!("apiVersion: v1\nkind: PodList\nmetadata: {{}}\nitems:\n- {}\n", item.replace("kind: Pod, ", "")), 1),
        (format!("apiVersion: v1\nkind: PodList\nitems: []\n---\n{POD}"), 1),
    ];
    for (text, count) in cases {
        assert_eq!(names(&text), vec!["web"; count], "{text}");
    }
}

#[test]
fn manifest_values_get_the_types_of_their_fields() {
    let text = "apiVersion: v1
kind: Pod
metadata:
  name: web
  creationTimestamp: null
spec:
  containers:
  - name: y
    image: busybox
    stdin: yes
    env: [{name: N, value: no}, {name: EMPTY, value: ''}]
    resources: {limits: {cpu: 1, memory: 1.5Gi}}
    livenessProbe: {tcpSocket: {port: 80}}
    readinessProbe: {tcpSocket: {port: http}}
  volumes:
  - name: v
    downwardAPI: {defaultMode: 0644}
status: {}
";
    let manifest = read(text.as_bytes());
    assert_eq!(manifest.faults, []);
    let spec = serde_json::to_value(manifest.pods[0].spec.as_ref().unwrap()).unwrap();
    let container = &spec["containers"][0];
    assert_eq!(container["name"], "y");
    assert_eq!(container["stdin"], true);
    assert_eq!(container["env"][0]["value"], "no");
    assert_eq!(container["env"][1]["value"], "");
    assert_eq!(container["resources"]["limits"], serde_json::json!({"cpu": "1", "memory": "1.5Gi"}));
    assert_eq!(container["livenessProbe"]["tcpSocket"]["port"], 80);
    assert_eq!(container["readinessProbe"]["tcpSocket"]["port"], "http");
    assert_eq!(spec["volumes"][0]["downwardAPI"]["defaultMode"], 0o644);
}

#[test]
fn manifest_fault_names_position_pod_field_and_remedy() {
    let cases = [
        (
            with("imagePulPolicy: Always"),
            "line 9, column 5: pod \"web\": spec.containers[0].imagePulPolicy: unknown field; did you mean \
             \"imagePullPolicy\"?",
        ),
        (
            with("livenessprobe: {}"),
            "line 9, column 5: pod \"web\": spec.containers[0].livenessprobe: unknown field; did you mean \
             \"livenessProbe\"?",
        ),
        (
            with("xyzzy: 1"),
            "line 9, column 5: pod \"web\": spec.containers[0].xyzzy: unknown field: remove it or move it to where it \
             belongs",
        ),
        (
            with("command: echo"),
            "line 9, column 14: pod \"web\": spec.containers[0].command: must be a list, not the text \"echo\"",
        ),
        (
            with("env: [{name: A, value: 5}]"),
            "line 9, column 28: pod \"web\": spec.containers[0].env[0].value: must be text, not the number 5: put it in \
             quotes",
        ),
        (
            with("tty: maybe"),
            "line 9, column 10: pod \"web\": spec.containers[0].tty: must be true or false, not the text \"maybe\"",
        ),
        (
            with("ports: [{containerPort: http}]"),
            "line 9, column 29: pod \"web\": spec.containers[0].ports[0].containerPort: must be a whole number, not the \
             text \"http\"",
        ),
        (
            with("volumeMounts: [{name: data, mountPath: /data}]"),
            "line 9, column 21: pod \"web\": spec.containers[0].volumeMounts[0].name \"data\" is not a volume of the \
             pod: add it to spec.volumes, which has none",
        ),
        (
            with("envFrom: [{secretRef: {name: s}}]"),
            "line 9, column 16: pod \"web\": spec.containers[0].envFrom[0].secretRef refers to a secret, which a static \
             pod cannot use: give the value itself, or mount a file with hostPath",
        ),
        (
            POD.replace("- name: c\n    image", "- image"),
            "line 7, column 5: pod \"web\": spec.containers[0].name is missing: give the container a name",
        ),
        (
            POD.replace("  name: web", "  labels: {a.b/c: 'x y'}\n  name: web"),
            "line 4, column 12: pod \"web\": metadata.labels[a.b/c] \"x y\" is not a valid label value: use at most 63 \
             letters, digits, '-', '_' and '.', with a letter or digit at each end",
        ),
        (with("image: again"), "line 9, column 5: field \"image\" is set twice: keep one"),
        (
            POD.replace("  name: web", "\tname: web"),
            "line 4, column 2: not valid YAML or JSON: tabs disallowed within \
          this context (block indentation)",
        ),
        ("just text".into(), "line 1, column 1: is not an object: start with apiVersion: v1 and kind: Pod"),
        (String::new(), "contains no pod: write one, or remove the manifest to stop its pods"),
        ("# comment\n".into(), "contains no pod: write one, or remove the manifest to stop its pods"),
        ("metadata: {}".into(), "line 1, column 1: apiVersion and kind are missing: add apiVersion: v1 and kind: Pod"),
        (POD.replace("kind: Pod\n", ""), "line 1, column 1: kind is missing: add kind: Pod"),
        (POD.replace("v1", "v2"), "line 1, column 1: apiVersion of Pod is \"v2\": write apiVersion: v1"),
        (
            "apiVersion: apps/v1\nkind: Deployment\n".into(),
            "line 2, column 1: kind \"Deployment\" cannot run here: only Pod, PodList and List of pods can",
        ),
        (
            "apiVersion: v1\nkind: List\nitems:\n- kind: Secret\n".into(),
            "line 4, column 3: an item of kind \"Secret\" cannot run here: list only pods",
        ),
        ("apiVersion: v1\nkind: List\n".into(), "line 1, column 1: items is missing: list the pods there"),
    ];
    for (text, fault) in cases {
        assert_eq!(faults(&text), [fault], "{text}");
    }
}

/// The text as UTF-16, without a byte order mark.
fn utf_16(text: &str, bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
    text.encode_utf16().flat_map(bytes).collect()
}

#[test]
fn manifest_in_utf_16_with_a_byte_order_mark_is_read() {
    let text = POD.replace("busybox", "busybox\n    args: [grüße, 😀]");
    let expected = read(text.as_bytes()).pods;
    assert_eq!(expected.len(), 1);
    let marked = format!("\u{feff}{text}");
    for bytes in [marked.clone().into_bytes(), utf_16(&marked, u16::to_le_bytes), utf_16(&marked, u16::to_be_bytes)] {
        let Manifest { pods, faults, .. } = read(&bytes);
        assert_eq!(faults, [], "{:?}", &bytes[..4]);
        assert!(pods == expected, "{:?}", &bytes[..4]);
    }
}

#[test]
fn manifest_in_another_encoding_is_refused_with_the_remedy() {
    let odd = &utf_16(&format!("\u{feff}{POD}"), u16::to_le_bytes)[..9];
    let cases: [(&[u8], &str); 7] = [
        (b"kind: Pod\nm\xc3\xa4\xff", "line 2, column 3: not valid UTF-8: save it in that encoding"),
        (&utf_16(POD, u16::to_le_bytes), "line 1, column 1: is UTF-16 without a byte order mark: save it as UTF-8"),
        (&utf_16(POD, u16::to_be_bytes), "line 1, column 1: is UTF-16 without a byte order mark: save it as UTF-8"),
        (odd, "line 1, column 4: not valid UTF-16: save it as UTF-8"),
        (b"\xfe\xff\0a\0\n\xd8\0\0b", "line 2, column 1: not valid UTF-16: save it as UTF-8"),
        (b"\xff\xfe\0\0a\0\0\0", "line 1, column 1: is UTF-32: save it as UTF-8"),
        (b"\0\0\xfe\xff\0\0\0a", "line 1, column 1: is UTF-32: save it as UTF-8"),
    ];
    for (bytes, fault) in cases {
        let faults: Vec<String> = read(bytes).faults.iter().map(ToString::to_string).collect();
        assert_eq!(faults, [fault], "{bytes:?}");
    }
}

#[test]
fn manifest_that_is_too_large_is_refused_with_its_limit() {
    let lists = "[".repeat(33) + &"]".repeat(33);
    let aliases = format!("a: &a [{}]\nb: &b [{}]\nc: [{}]", "x, ".repeat(99), "*a, ".repeat(60), "*b, ".repeat(60));
    for (text, fault) in [
        (" ".repeat(MAX_BYTES + 1), "has more than 10 MiB: split it into smaller manifests"),
        ("--- {}\n".repeat(1025), "has more than 1024 documents: split it into smaller manifests"),
        (format!("a: {lists}"), "has more than 32 levels of objects and lists: no pod has so many, correct it"),
        // The parser stops before it counts the levels.
        (
            format!("a: {}", "[".repeat(5000)),
            "has more than 32 levels of objects and lists: no pod has so many, correct it",
        ),
        (
            format!("a: {}", "{a: ".repeat(5000)),
            "has more than 32 levels of objects and lists: no pod has so many, correct it",
        ),
        (aliases, "its aliases repeat more than 10000 values: write fewer aliases (`*name`)"),
        (format!("[{}]", "1, ".repeat(300_000)), "has too many values: split it into smaller manifests"),
    ] {
        let messages: Vec<String> = read(text.as_bytes()).faults.into_iter().map(|fault| fault.message).collect();
        assert_eq!(messages, [fault], "{}", &text[..20]);
    }
}

#[test]
fn all_faults_of_a_manifest_pod_are_reported_at_once() {
    let text = with("imagee: x\n    tyy: true\n    stdinn: true");
    assert_eq!(faults(&text).len(), 3);
    let text = POD.replace("name: c", "name: C").replace("spec:", "spec:\n  restartPolicy: Sometimes");
    assert_eq!(faults(&text).len(), 2);
}

#[test]
fn manifest_fault_in_one_pod_keeps_the_other_pods() {
    let manifest = read_with(format!("{}---\n{POD}", with("imagee: x")).as_bytes(), UnknownFields::Refuse);
    assert_eq!(manifest.pods.len(), 1);
    assert_eq!(manifest.faults.len(), 1);
}

#[test]
fn unknown_field_is_a_warning_and_the_pod_is_used() {
    let texts = |manifest: &Manifest| {
        manifest.warnings.iter().map(|warning| (warning.pod, warning.fault.to_string())).collect::<Vec<_>>()
    };
    let text = format!("{POD}---\n{}", with("imagePulPolicy: Always").replace("name: web", "name: db"));
    let manifest = read(text.as_bytes());
    assert_eq!((manifest.pods.len(), &manifest.faults[..]), (2, &[][..]));
    let expected = "line 18, column 5: pod \"db\": spec.containers[0].imagePulPolicy: unknown field; did you mean \
                    \"imagePullPolicy\"? (the field is ignored)";
    assert_eq!(texts(&manifest), [(Some(1), expected.to_owned())]);
    assert_eq!(manifest.pods[1].spec.as_ref().unwrap().containers[0].image_pull_policy, None);

    let list = "apiVersion: v1\nkind: List\nitemz: []\nitems: []\n";
    assert_eq!(texts(&read(list.as_bytes())).len(), 1);
    assert_eq!(read_with(list.as_bytes(), UnknownFields::Refuse).faults.len(), 1);

    // The misspelled field is the cause of the other fault, so both are reported.
    let manifest = read(POD.replace("image:", "imagee:").as_bytes());
    assert_eq!((manifest.pods.len(), manifest.faults.len(), manifest.warnings.len()), (0, 2, 0));
    let many = (0..250).map(|i| format!("    f{i}: 1\n")).collect::<String>();
    assert_eq!(read(format!("{POD}{many}").as_bytes()).warnings.len(), 100);
}

#[test]
fn manifest_faults_are_limited_in_number_length_and_characters() {
    let many = (0..250).map(|i| format!("    f{i}: 1\n")).collect::<String>();
    let reported = faults(&format!("{POD}{many}"));
    assert_eq!(reported.len(), 101);
    assert_eq!(reported[100], "and 150 more faults: correct these first");

    let long = "x".repeat(100_000);
    for hostile in ["\\e[2J\\n", "\\u202e", &long] {
        let key = POD.replace("name: web", &format!("name: web\n  labels: {{\"{hostile}\": a}}"));
        let value = POD.replace("name: web", &format!("name: \"{hostile}\""));
        let field = POD.replace("image:", &format!("? \"{hostile}\"\n    : 1\n    image:"));
        let kind = POD.replace("kind: Pod", &format!("kind: \"{hostile}\""));
        for text in [key, value, field, kind] {
            let [fault] = &faults(&text)[..] else { panic!("{text:.100}") };
            assert!(fault.len() < 1500 && !fault.contains(['\x1b', '\n', '\u{202e}']), "{fault:?}");
        }
    }
}

#[test]
fn manifest_remedy_lists_a_limited_number_of_names() {
    let volumes = (10..60).map(|i| format!("  - {{name: v{i}, emptyDir: {{}}}}\n")).collect::<String>();
    let text = format!("{POD}    volumeMounts: [{{name: w, mountPath: /w}}]\n  volumes:\n{volumes}");
    let [fault] = &faults(&text)[..] else { panic!() };
    assert!(fault.contains("v10") && !fault.contains("v20"), "{fault}");
}

#[test]
fn manifest_nesting_and_aliases_are_limited() {
    let deep = (0..120).map(|i| format!("{}a:\n", " ".repeat(i))).collect::<String>();
    assert!(faults(&deep)[0].contains("line 3"), "{:?}", faults(&deep));
    let laugh = |of: char, by: char| format!("{by}: &{by} [{}]\n", vec![format!("*{of}"); 9].join(","));
    let laughs: String = ('a'..'i').zip('b'..='i').map(|(of, by)| laugh(of, by)).collect();
    assert_eq!(faults(&format!("a: &a [x]\n{laughs}")).len(), 1);
}
