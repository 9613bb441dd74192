//! A request as the server understands it: the resource, the object, the verb and the options.

use serde_json::Value;

use crate::protobuf;
use crate::raw;
use crate::refusal::Refusal;
use crate::schema::{self, RESOURCES, Resource};

/// The action of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Reads one object.
    Get,
    /// Reads many objects.
    List,
    /// Follows many objects.
    Watch,
    /// Creates an object.
    Create,
    /// Replaces an object.
    Update,
    /// Changes a part of an object.
    Patch,
    /// Deletes one object.
    Delete,
    /// Deletes many objects.
    DeleteCollection,
}

impl Verb {
    const ALL: [Self; 8] = [
        Self::Get,
        Self::List,
        Self::Watch,
        Self::Create,
        Self::Update,
        Self::Patch,
        Self::Delete,
        Self::DeleteCollection,
    ];

    /// The verb with this name in the authorization API.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.name() == name)
    }

    /// Whether the action changes objects.
    pub(crate) fn is_write(self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Watch)
    }

    /// The verb in the words of the authorization API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

/// The options behind the `?` of a URL.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads the part of a URL after the `?`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(name), decode(value))
                })
                .collect(),
        )
    }

    /// The options in their order, each with its value.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &String)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The value of an option; empty if the request does not have it.
    #[must_use]
    pub fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(found, _)| found == name).map_or("", |(_, value)| value)
    }

    /// Whether an option is set to true.
    #[must_use]
    pub fn is_true(&self, name: &str) -> bool {
        matches!(self.get(name), "true" | "1")
    }

    /// A number; none if the request does not have the option.
    ///
    /// # Errors
    ///
    /// If the value is not a number.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Refusal> {
        match self.get(name) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                Refusal::bad_request(match name {
                    "resourceVersion" => format!(
                        "invalid resource version: resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing \
                         {text:?}: invalid syntax"
                    ),
                    _ => format!("invalid query parameter {name}: {text:?} is not a whole number"),
                })
            }),
        }
    }
}

/// Replaces `%XX` and `+` as in the query of a URL.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        let hex = (*first == b'%')
            .then(|| tail.get(..2))
            .flatten()
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if let Some(byte) = hex {
            bytes.push(byte);
            rest = &tail[2..];
        } else {
            bytes.push(if *first == b'+' { b' ' } else { *first });
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// One request to a resource.
#[derive(Clone, Debug)]
pub struct Call {
    /// The resource.
    pub resource: &'static Resource,
    /// The namespace of the path; none for cluster-scoped resources and for requests over all namespaces.
    pub namespace: Option<String>,
    /// The name of the object.
    pub name: Option<String>,
    /// The path below the object.
    pub subresource: Option<String>,
    /// The action of the request.
    pub verb: Verb,
    /// The options.
    pub query: Query,
    /// The media type of the body, without parameters.
    pub content_type: String,
    /// The body; null if the request has none.
    pub body: Value,
}

impl Call {
    /// Reads a request. The body is parsed as its media type says.
    ///
    /// # Errors
    ///
    /// If the server has no resource at the path, or if the body cannot be parsed.
    pub fn parse(method: &str, path: &str, query: &str, content_type: &str, body: &[u8]) -> Result<Self, Refusal> {
        let parts: Vec<String> = path.trim_matches('/').split('/').map(decode).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return Err(Refusal::no_such_path()),
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() && !matches!(rest, ["status" | "finalize"]) => {
                (Some(*namespace), rest)
            }
            rest => (None, rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, None, None),
            [plural, name] => (*plural, Some(*name), None),
            [plural, name, subresource] => (*plural, Some(*name), Some(*subresource)),
            _ => return Err(Refusal::no_such_path()),
        };
        let resource = schema::find(group, version, plural).ok_or_else(Refusal::no_such_path)?;
        let is_served = subresource.is_none_or(|sub| resource.subresources.contains(&sub));
        if !is_served || (namespace.is_some() && !resource.namespaced) {
            return Err(Refusal::no_such_path());
        }
        if resource.namespaced && namespace.is_none() && name.is_some() {
            return Err(Refusal::no_such_path());
        }
        let query = Query::parse(query);
        let verb = match (method, name) {
            ("GET", None) if query.is_true("watch") => Verb::Watch,
            ("GET", None) => Verb::List,
            ("GET", Some(_)) => Verb::Get,
            ("POST", None) => Verb::Create,
            ("POST", Some(_)) if subresource.is_some() => Verb::Create,
            ("PUT", Some(_)) => Verb::Update,
            ("PATCH", Some(_)) => Verb::Patch,
            ("DELETE", Some(_)) => Verb::Delete,
            ("DELETE", None) => Verb::DeleteCollection,
            _ => return Err(Refusal::method_not_allowed()),
        };
        if resource.review && verb != Verb::Create {
            return Err(Refusal::method_not_allowed());
        }
        if verb == Verb::Create && resource.namespaced && namespace.is_none() {
            return Err(Refusal::method_not_allowed());
        }
        let content_type = content_type.split(';').next().unwrap_or_default().trim().to_owned();
        let body = parse_body(resource, &content_type, body)?;
        Ok(Self {
            resource,
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
            subresource: subresource.map(str::to_owned),
            verb,
            query,
            content_type,
            body,
        })
    }

    /// The request that the attributes of an access review describe. None if the server has no such resource or verb.
    pub(crate) fn of_attributes(attributes: &Value) -> Option<Self> {
        let text = |field: &str| attributes[field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let (group, plural) = (text("group").unwrap_or_default(), text("resource")?);
        let resource = RESOURCES.iter().find(|resource| resource.group == group && resource.plural == plural)?;
        Some(Self {
            resource,
            namespace: text("namespace"),
            name: text("name"),
            subresource: text("subresource"),
            verb: Verb::from_name(attributes["verb"].as_str()?)?,
            query: Query(field_selector(&attributes["fieldSelector"]).into_iter().collect()),
            content_type: String::new(),
            body: Value::Null,
        })
    }

    /// The name of the object, empty if the path has none.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// The namespace of the path, empty if it has none.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }

    /// The path below the object, empty if there is none.
    #[must_use]
    pub fn subresource(&self) -> &str {
        self.subresource.as_deref().unwrap_or_default()
    }
}

/// The option of a request with the field selector of an access review.
fn field_selector(selector: &Value) -> Option<(String, String)> {
    let requirements = selector["requirements"].as_array().into_iter().flatten().filter_map(|requirement| {
        let is_equality = requirement["operator"] == "In";
        let (key, value) = (requirement["key"].as_str()?, requirement["values"][0].as_str()?);
        is_equality.then(|| format!("{key}={value}"))
    });
    let joined = requirements.collect::<Vec<_>>().join(",");
    let text =
        selector["rawSelector"].as_str().map(str::to_owned).or_else(|| (!joined.is_empty()).then_some(joined))?;
    Some(("fieldSelector".to_owned(), text))
}

fn parse_body(resource: &Resource, content_type: &str, body: &[u8]) -> Result<Value, Refusal> {
    if body.is_empty() {
        return Ok(Value::Null);
    }
    let mut object = decode_body(content_type, body)?;
    raw::keep(resource.kind, std::str::from_utf8(body).unwrap_or_default(), &mut object);
    Ok(object)
}

fn decode_body(content_type: &str, body: &[u8]) -> Result<Value, Refusal> {
    let accepted = "application/json, application/yaml";
    match content_type {
        protobuf::MEDIA_TYPE => protobuf::decode(body).map_err(|why| Refusal::plain(415, "UnsupportedMediaType", why)),
        "application/apply-patch+yaml" | "application/yaml" => {
            let text = std::str::from_utf8(body)
                .map_err(|error| Refusal::bad_request(format!("error decoding YAML: {error}")))?;
            // JSON first: every JSON text is YAML, and its parser is exact about numbers.
            serde_json::from_str(text)
                .or_else(|_| serde_saphyr::from_str(text).map_err(|error| error.to_string()))
                .map_err(|error| Refusal::bad_request(format!("error decoding YAML: {error}")))
        }
        ""
        | "application/json"
        | "application/merge-patch+json"
        | "application/json-patch+json"
        | "application/strategic-merge-patch+json" => serde_json::from_slice(body).map_err(|error| {
            Refusal::bad_request(format!("the object provided is unrecognized (must be of type Object): {error}"))
        }),
        _ => Err(Refusal::unsupported_media_type(accepted)),
    }
}
