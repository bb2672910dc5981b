//! Fuzzes the control socket and the metrics page of the daemon. Each input is read twice: as lines
//! of requests to the socket, and as the header of an HTTP request.
//!
//! The fuzzer demands:
//! - There is no panic.
//! - Each request line has one reply, a line of JSON. The reply has the id of the request, and
//!   either an answer or an error message.
//! - An accepted `trace-start` request is the same after it is encoded and parsed again.
//! - HTTP responses are complete, and an HTTP header that is too long gets a response.
//!
//! Both parsers are compiled from their source files, without the rest of the program. Seeds in
//! `corpus/control` are requests of docs/control.md, of browsers and of Prometheus.

#![no_main]

#[path = "../../crates/cli/src/views/history.rs"]
#[allow(dead_code)]
mod history;
#[path = "../../crates/cli/src/views/http.rs"]
mod http;
#[path = "../../crates/cli/src/views/protocol.rs"]
#[allow(dead_code, unfulfilled_lint_expectations)]
mod protocol;

/// Replaces the daemon's module `requests`, so that the rest of the program need not build.
/// Declares three of its requests, with untyped JSON as answers.
mod requests {
    use std::path::PathBuf;

    use serde::{Deserialize, Serialize};
    use serde_json::Value;

    use crate::protocol::{Access, Verb};

    #[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct StatsQuery {
        #[serde(default)]
        pub all: bool,
    }

    #[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct HistoryRange {
        #[serde(default)]
        pub seconds: Option<usize>,
    }

    #[derive(Debug, Clone, Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct TraceStart {
        pub name: PathBuf,
        #[serde(default)]
        pub volume: Option<String>,
        #[serde(default)]
        pub drives: Vec<String>,
        #[serde(default)]
        pub sectors: Option<(u64, u64)>,
    }

    pub const STATS: Verb<StatsQuery, Value> = Verb::new("stats", Access::Everybody, "");
    pub const HISTORY: Verb<HistoryRange, Value> = Verb::new("history", Access::Everybody, "");
    pub const TRACE_START: Verb<TraceStart, Value> =
        Verb::new("trace-start", Access::EverybodyToRead, "");
}

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use protocol::{ControlVerb, Question, Refusal};
use requests::{HISTORY, STATS, StatsQuery, TRACE_START};
use serde_json::{Map, Value, json};

/// Stands in for the daemon's trait `Answers`, which http.rs imports. The fuzzer does not compile
/// the daemon.
pub trait Answers {
    fn ask(&self, verb: &str, arguments: Map<String, Value>) -> Result<Question, Refusal>;
    fn metrics(&self, query: StatsQuery) -> String;
    fn problems(&self) -> Vec<String>;
}

struct Daemon;

fn verbs() -> [ControlVerb<Daemon>; 3] {
    [
        ControlVerb::new(STATS, |_, _| Ok(json!({ "uptime_ns": 1 }))),
        ControlVerb::new(HISTORY, |_, _| Ok(json!({}))),
        ControlVerb::new(TRACE_START, |_, start| Ok(json!(start))),
    ]
}

impl Answers for Daemon {
    fn ask(&self, verb: &str, arguments: Map<String, Value>) -> Result<Question, Refusal> {
        protocol::ask(&verbs(), &Arc::new(Daemon), (verb, arguments))
    }

    fn metrics(&self, _: StatsQuery) -> String {
        "up 1\n".to_owned()
    }

    fn problems(&self) -> Vec<String> {
        vec!["drive d0: 1 failed request in the last minute".to_owned()]
    }
}

const HEAD_BYTES_MAX: usize = 8 * 1024;

fuzz_target!(|input: &[u8]| {
    input.split(|byte| *byte == b'\n').for_each(line);
    match http::answer(input, &Daemon) {
        Some(response) => whole(&response, input.starts_with(b"HEAD ")),
        None => assert!(
            input.len() <= HEAD_BYTES_MAX,
            "the server waits for more of a request head that is too long"
        ),
    }
});

fn line(line: &[u8]) {
    let request = protocol::parse(line);
    let asked = request.verb.clone().and_then(|(verb, arguments)| Daemon.ask(&verb, arguments));
    let outcome = asked.and_then(|question| (question.answer)());
    if let (Ok((verb, _)), Ok(start)) = (&request.verb, &outcome)
        && verb == TRACE_START.name
    {
        let Value::Object(again) = start.clone() else { panic!("arguments are an object") };
        let again = Daemon.ask(verb, again).and_then(|question| (question.answer)());
        assert_eq!(again.as_ref(), Ok(start));
    }
    let reply = protocol::reply(&request.id, outcome);
    assert_eq!(reply.iter().position(|byte| *byte == b'\n'), Some(reply.len() - 1), "one line");
    let back: Value = serde_json::from_slice(&reply).expect("a reply is JSON");
    assert_eq!(back["id"], request.id);
    let refused = back["error"]["message"].as_str().is_some_and(|message| !message.is_empty());
    assert!(back.get("ok").is_some() != refused, "a reply has either a result or an error message");
}

fn whole(response: &[u8], to_head: bool) {
    let response = std::str::from_utf8(response).expect("a response is text");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head ends");
    assert!(head.starts_with("HTTP/1.1 ") && head.contains("\r\nConnection: close"), "{head}");
    let length = head.split("Content-Length: ").nth(1).and_then(|rest| rest.lines().next());
    assert!(to_head || length == Some(&body.len().to_string()[..]), "{head}");
}
