//! The query of a request for a log. Pure.

use std::time::Duration;

use jiff::Timestamp;

use super::container_logs::LogRequest;
use podwright_host::log::reader::{LogStream, ReadOptions};

/// Why a query is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadLogQuery {
    /// A value has a wrong type.
    Undecodable,
    /// A value is out of range, or two values exclude each other.
    Invalid,
}

/// Parses the parameters of `PodLogOptions` (`getContainerLogs`, `pkg/kubelet/server/server.go`; `ValidatePodLogOptions`,
/// `pkg/apis/core/v1/validation`, 1.36). `tail` is an earlier name of `tailLines`. If a parameter is repeated, its first value is used. Unknown
/// parameters are ignored.
///
/// # Errors
/// [`BadLogQuery`] if the query cannot be used.
pub(super) fn parse(query: &[(String, String)], now: Timestamp) -> Result<LogRequest, BadLogQuery> {
    let value = |name: &str| query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let flag = |name: &str| value(name).is_some_and(is_true);
    let number = |name: &str| match value(name).filter(|text| !text.is_empty()) {
        Some(text) => text.parse::<i64>().map(Some).map_err(|_| BadLogQuery::Undecodable),
        None => Ok(None),
    };
    let tail = match value("tail") {
        Some("all") => None,
        Some(text) if !text.is_empty() => Some(text.parse::<i64>().map_err(|_| BadLogQuery::Undecodable)?),
        _ => number("tailLines")?,
    };
    let (seconds, limit) = (number("sinceSeconds")?, number("limitBytes")?);
    let time = match value("sinceTime").filter(|text| !text.is_empty()) {
        Some(text) => Some(text.parse::<Timestamp>().map_err(|_| BadLogQuery::Undecodable)?),
        None => None,
    };
    let stream = match value("stream") {
        None | Some("" | "All") => None,
        Some("Stdout") => Some(LogStream::Stdout),
        Some("Stderr") => Some(LogStream::Stderr),
        Some(_) => return Err(BadLogQuery::Invalid),
    };
    let (follow, previous, timestamps) = (flag("follow"), flag("previous"), flag("timestamps"));
    let is_valid = tail.is_none_or(|lines| lines >= 0)
        && limit.is_none_or(|bytes| bytes > 0)
        && seconds.is_none_or(|seconds| seconds > 0)
        && !(seconds.is_some() && time.is_some())
        && !(stream.is_some() && tail.is_some());
    if !is_valid {
        return Err(BadLogQuery::Invalid);
    }
    let ago =
        seconds.map(|seconds| now.checked_sub(Duration::from_secs(seconds.unsigned_abs())).unwrap_or(Timestamp::MIN));
    let options = ReadOptions { tail: tail.map(i64::unsigned_abs), since: time.or(ago), timestamps, stream };
    Ok(LogRequest { previous, follow, options, limit: limit.map(i64::unsigned_abs) })
}

/// Parses a flag as the API server does (`Convert_Slice_string_To_bool`, `k8s.io/apimachinery`): every text except `false` and `0` is true.
fn is_true(text: &str) -> bool {
    !(text.eq_ignore_ascii_case("false") || text == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(query: &str) -> Result<LogRequest, BadLogQuery> {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let pairs: Vec<_> = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        parse(&pairs, Timestamp::from_second(1000).unwrap())
    }

    #[test]
    fn parameters_of_a_log_are_parsed() {
        let all =
            of("follow=true&previous=false&timestamps=1&tailLines=5&limitBytes=7&sinceSeconds=100&other=x").unwrap();
        assert!(all.follow && !all.previous && all.options.timestamps);
        assert_eq!((all.options.tail, all.limit), (Some(5), Some(7)));
        assert_eq!(all.options.since, Some(Timestamp::from_second(900).unwrap()));
        let none = of("").unwrap();
        assert_eq!((none.options, none.limit, none.follow), (ReadOptions::default(), None, false));
        assert_eq!(of("tail=all&tailLines=3").unwrap().options.tail, None);
        assert_eq!(of("tail=4").unwrap().options.tail, Some(4));
        assert_eq!(
            of("sinceTime=1970-01-01T00:00:05Z").unwrap().options.since,
            Some(Timestamp::from_second(5).unwrap())
        );
        assert_eq!(of("stream=Stderr").unwrap().options.stream, Some(LogStream::Stderr));
        assert_eq!(of("stream=All").unwrap().options.stream, None);
        assert_eq!(of("tailLines=0").unwrap().options.tail, Some(0));
        assert_eq!(of("sinceSeconds=9223372036854775807").unwrap().options.since, Some(Timestamp::MIN));
    }

    #[test]
    fn parameters_that_cannot_be_used_are_refused() {
        for query in ["tailLines=x", "limitBytes=1.5", "sinceSeconds=1s", "sinceTime=yesterday", "tail=x"] {
            assert_eq!(of(query).unwrap_err(), BadLogQuery::Undecodable, "{query}");
        }
        for query in [
            "tailLines=-1",
            "limitBytes=0",
            "sinceSeconds=0",
            "sinceSeconds=1&sinceTime=1970-01-01T00:00:05Z",
            "stream=Both",
            "stream=Stdout&tailLines=1",
        ] {
            assert_eq!(of(query).unwrap_err(), BadLogQuery::Invalid, "{query}");
        }
    }
}
