//! The control protocol: a line of JSON to a [`Verb`], and replies to lines of JSON.
//!
//! Owns the names of the verbs, the limits and the version. Pure functions: session.rs brings the
//! bytes, [`Answers`](super::Answers) the answers. Whatever the bytes are, they give a verb or a
//! refusal. docs/control.md describes it for whoever writes a client.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::requests::{
    Acknowledge, AddSection, Disconnect, HistoryRange, LogLevel, Reload, RemoveSection, Resize,
    Set, SetGroup, StatsQuery, TraceStart,
};

/// Version of the protocol. It grows when a client for an older one would misunderstand; verbs and
/// fields that are added leave it as it is.
pub const CONTROL_VERSION: u32 = 1;
/// Longest request in bytes, without its newline.
pub const LINE_BYTES_MAX: usize = 64 * 1024;

const VERBS: [&str; 20] = [
    "version",
    "stats",
    "history",
    "trace-start",
    "trace-status",
    "trace-stop",
    "locks-start",
    "locks-status",
    "locks-stop",
    "resize",
    "set",
    "set-group",
    "acknowledge",
    "log-level",
    "clients",
    "disconnect",
    "reload",
    "add",
    "remove",
    "configuration",
];
/// Fields of a request that belong to no verb.
const COMMON: [&str; 2] = ["id", "verb"];

/// What a client may ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verb {
    /// What runs here: the greeting once more.
    Version,
    /// Counters.
    Stats(StatsQuery),
    /// Samples of the last hour.
    History(HistoryRange),
    /// Record what drives do.
    TraceStart(Box<TraceStart>),
    /// How that goes; whoever asks still wants it.
    TraceStatus,
    /// End that.
    TraceStop,
    /// Take lock statistics.
    LocksStart,
    /// What they are so far; whoever asks still wants them.
    LocksStatus,
    /// End that.
    LocksStop,
    /// Look whether a volume's drives have grown.
    Resize(Resize),
    /// Change settings of a volume.
    Set(Set),
    /// Change settings of a group.
    SetGroup(SetGroup),
    /// Forget that an earlier daemon ended with a dirty cache of a volume.
    Acknowledge(Acknowledge),
    /// Tell or change how much is logged.
    LogLevel(LogLevel),
    /// All clients of NBD.
    Clients,
    /// End the connection of a client.
    Disconnect(Disconnect),
    /// Serve another configuration.
    Reload(Reload),
    /// Serve the configuration of now with one more section.
    Add(AddSection),
    /// Serve the configuration of now without a section.
    Remove(RemoveSection),
    /// The configuration of now as TOML.
    Configuration,
}

impl Verb {
    /// True for verbs whose answer may take as long as drives do.
    pub fn takes_long(&self) -> bool {
        matches!(self, Verb::Reload(_) | Verb::Add(_) | Verb::Remove(_))
    }

    /// True for verbs that change what the daemon does for its clients; all others only look.
    pub fn changes(&self) -> bool {
        match self {
            Verb::Version | Verb::Stats(_) | Verb::History(_) | Verb::Clients => false,
            // Paths and sockets of everybody.
            Verb::Configuration | Verb::Add(_) | Verb::Remove(_) => true,
            Verb::TraceStart(_) | Verb::TraceStatus | Verb::TraceStop => false,
            Verb::LocksStart | Verb::LocksStatus | Verb::LocksStop => false,
            Verb::LogLevel(asked) => asked.level.is_some(),
            Verb::Resize(_) | Verb::Set(_) | Verb::SetGroup(_) => true,
            Verb::Acknowledge(_) | Verb::Disconnect(_) | Verb::Reload(_) => true,
        }
    }
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// One word, for programs.
    pub kind: &'static str,
    /// For people: what is wrong and what to do.
    pub message: String,
}

impl Refusal {
    /// A refusal of this kind.
    pub fn new(kind: &'static str, message: impl Into<String>) -> Self {
        Refusal { kind, message: message.into() }
    }
}

/// A request, as far as it could be read.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// What the client calls it, repeated in the reply; null if it says nothing.
    pub id: Value,
    /// What it asks.
    pub verb: Result<Verb, Refusal>,
}

/// Reads a line, without its newline.
pub fn parse(line: &[u8]) -> Request {
    let broken = |refusal| Request { id: Value::Null, verb: Err(refusal) };
    if line.len() > LINE_BYTES_MAX {
        return broken(too_long());
    }
    let fields: Map<String, Value> = match serde_json::from_slice(line) {
        Ok(fields) => fields,
        Err(error) => {
            let text = format!("not a JSON object: {error}; write {{\"verb\":\"stats\"}}");
            return broken(Refusal::new("bad-request", text));
        }
    };
    let id = match fields.get("id") {
        None => Value::Null,
        Some(id) if id.is_u64() || id.is_i64() || id.is_string() || id.is_null() => id.clone(),
        Some(_) => return broken(Refusal::new("bad-request", "id is a whole number or a string")),
    };
    let verb = verb(&fields);
    Request { id, verb }
}

/// The refusal of a line that has no end.
pub fn too_long() -> Refusal {
    let text = format!("a request is one line of at most {LINE_BYTES_MAX} bytes");
    Refusal::new("bad-request", text)
}

/// The verb of a request, with its arguments.
fn verb(fields: &Map<String, Value>) -> Result<Verb, Refusal> {
    let known = VERBS.join(", ");
    let Some(name) = fields.get("verb").and_then(Value::as_str) else {
        let text = format!("verb is missing or no string; there are {known}");
        return Err(Refusal::new("bad-request", text));
    };
    let verb = match name {
        "version" => Verb::Version,
        "stats" => return arguments(name, fields).map(Verb::Stats),
        "clients" => Verb::Clients,
        "history" => return arguments(name, fields).map(Verb::History),
        "trace-start" => return arguments(name, fields).map(Box::new).map(Verb::TraceStart),
        "trace-status" => Verb::TraceStatus,
        "trace-stop" => Verb::TraceStop,
        "locks-start" => Verb::LocksStart,
        "locks-status" => Verb::LocksStatus,
        "locks-stop" => Verb::LocksStop,
        "resize" => return arguments(name, fields).map(Verb::Resize),
        "set" => return arguments(name, fields).map(Verb::Set),
        "set-group" => return arguments(name, fields).map(Verb::SetGroup),
        "acknowledge" => return arguments(name, fields).map(Verb::Acknowledge),
        "log-level" => return arguments(name, fields).map(Verb::LogLevel),
        "disconnect" => return arguments(name, fields).map(Verb::Disconnect),
        "reload" => return arguments(name, fields).map(Verb::Reload),
        "add" => return arguments(name, fields).map(Verb::Add),
        "remove" => return arguments(name, fields).map(Verb::Remove),
        "configuration" => Verb::Configuration,
        other => {
            let text = format!("there is no verb {other:?}; there are {known}");
            return Err(Refusal::new("unknown-verb", text));
        }
    };
    match fields.keys().find(|key| !COMMON.contains(&key.as_str())) {
        Some(key) => {
            let text = format!("{name} takes no {key:?}; remove it");
            Err(Refusal::new("bad-request", text))
        }
        None => Ok(verb),
    }
}

/// The arguments of a verb that has some.
fn arguments<T: for<'de> Deserialize<'de>>(
    name: &str,
    fields: &Map<String, Value>,
) -> Result<T, Refusal> {
    let own = fields.iter().filter(|(key, _)| !COMMON.contains(&key.as_str()));
    let own = Value::Object(own.map(|(key, value)| (key.clone(), value.clone())).collect());
    serde_json::from_value(own)
        .map_err(|error| Refusal::new("bad-request", format!("{name}: {error}")))
}

/// What the daemon says first, and to `version`.
pub fn greeting() -> Value {
    json!({
        "millrace": env!("CARGO_PKG_VERSION"),
        "control": CONTROL_VERSION,
        "pid": std::process::id(),
        "verbs": VERBS,
    })
}

/// The line that answers a request.
pub fn reply(id: &Value, outcome: Result<Value, Refusal>) -> Vec<u8> {
    line(&match outcome {
        Ok(ok) => json!({ "id": id, "ok": ok }),
        Err(Refusal { kind, message }) => {
            json!({ "id": id, "error": { "kind": kind, "message": message } })
        }
    })
}

/// A value as a line.
pub fn line(value: &Value) -> Vec<u8> {
    let mut line = value.to_string().into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refusal(line: &str) -> Refusal {
        parse(line.as_bytes()).verb.unwrap_err()
    }

    #[test]
    fn a_verb_is_read_with_the_id_that_its_reply_repeats() {
        let request = parse(br#"{"verb":"stats","id":7}"#);
        assert_eq!(request, Request { id: json!(7), verb: Ok(Verb::Stats(StatsQuery::default())) });
        let request = parse(b" {\"id\":\"a\", \"verb\" : \"version\"}\r");
        assert_eq!(request, Request { id: json!("a"), verb: Ok(Verb::Version) });
        assert_eq!(reply(&json!("a"), Ok(json!(1))), b"{\"id\":\"a\",\"ok\":1}\n");
    }

    #[test]
    fn stats_are_those_of_volumes_in_use_unless_all_are_asked_for() {
        let asked = |line: &str| parse(line.as_bytes()).verb;
        let query = |all| Ok(Verb::Stats(StatsQuery { all }));
        assert_eq!(asked(r#"{"verb":"stats","id":1}"#), query(false));
        assert_eq!(asked(r#"{"verb":"stats","all":false}"#), query(false));
        assert_eq!(asked(r#"{"verb":"stats","all":true}"#), query(true));
    }

    #[test]
    fn settings_of_a_group_are_words_or_numbers() {
        let request =
            parse(br#"{"verb":"set-group","group":"g","settings":{"iops":100,"burst":"1s"}}"#);
        let words = [("burst", "1s"), ("iops", "100")].map(|(k, w)| (k.to_owned(), w.to_owned()));
        let set = SetGroup { group: "g".into(), settings: words.into() };
        assert_eq!(request.verb, Ok(Verb::SetGroup(set)));
        let wrong = refusal(r#"{"verb":"set-group","group":"g","settings":{"iops":null}}"#);
        assert!(wrong.message.contains("settings: iops is null; write a word"), "{wrong:?}");
    }

    #[test]
    fn what_is_wrong_is_said_with_what_to_do() {
        assert_eq!(refusal(r#"{"verb":"stat"}"#).kind, "unknown-verb");
        let text = "there is no verb \"stat\"; there are version, stats, history, trace-start, \
                    trace-status, trace-stop, locks-start, locks-status, locks-stop, resize, set, \
                    set-group, acknowledge, log-level, clients, disconnect, reload, add, remove, \
                    configuration";
        assert_eq!(refusal(r#"{"verb":"stat"}"#).message, text);
        let text = "version takes no \"drive\"; remove it";
        assert_eq!(refusal(r#"{"verb":"version","drive":"d0"}"#).message, text);
        let text = "stats: unknown field `drive`, expected `all`";
        assert_eq!(refusal(r#"{"verb":"stats","drive":"d0"}"#).message, text);
        for line in ["", "{", "[]", "7", "{}", r#"{"verb":7}"#, r#"{"verb":"stats","id":[]}"#] {
            assert_eq!(refusal(line).kind, "bad-request", "{line}");
        }
        assert_eq!(refusal(&"[".repeat(60_000)).kind, "bad-request");
        assert_eq!(refusal(&" ".repeat(LINE_BYTES_MAX + 1)).message, too_long().message);
    }

    #[test]
    fn recordings_and_lock_statistics_count_as_reading() {
        let verb = |line: &str| parse(line.as_bytes()).verb.unwrap();
        for name in ["version", "stats", "trace-status", "trace-stop", "locks-start"] {
            assert!(!verb(&format!("{{\"verb\":{name:?}}}")).changes(), "{name}");
        }
        assert!(!verb(r#"{"verb":"trace-start","name":"/t"}"#).changes());
        assert!(!verb(r#"{"verb":"log-level"}"#).changes());
        assert!(verb(r#"{"verb":"log-level","level":"debug"}"#).changes());
        assert!(!verb(r#"{"verb":"clients"}"#).changes());
        assert!(verb(r#"{"verb":"disconnect","client":1}"#).changes());
        for name in ["resize", "set", "acknowledge"] {
            assert!(verb(&format!("{{\"verb\":{name:?},\"volume\":\"v\"}}")).changes(), "{name}");
        }
    }

    #[test]
    fn every_verb_that_is_named_is_known() {
        for name in VERBS {
            let more = match name {
                "trace-start" => ",\"name\":\"/t\"",
                "resize" | "set" | "acknowledge" => ",\"volume\":\"v\"",
                "disconnect" => ",\"client\":1001",
                "add" | "remove" => ",\"section\":\"drive\",\"name\":\"d\"",
                "set-group" => ",\"group\":\"g\",\"settings\":{\"weight\":\"7\"}",
                _ => "",
            };
            let line = format!("{{\"verb\":{name:?}{more}}}");
            assert!(parse(line.as_bytes()).verb.is_ok(), "{name}");
        }
    }

    /// Bytes, texts like JSON, and requests that are almost right.
    fn hostile() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..300),
            "[\\[\\]{}\":,0-9a-z\\\\ ]{0,80}".prop_map(String::into_bytes),
            "\\{\"verb\": ?\"(stats|version|trace-start|trace-stop|locks-stop|resize|set|set-group|[a-z]{0,4})\"(,\"id\":(-?[0-9]{1,30}|\"\\PC{0,9}\"))?\\}"
                .prop_map(String::into_bytes),
        ]
    }

    proptest! {
        #[test]
        fn any_line_gives_one_reply_that_is_one_line_of_json(line in hostile()) {
            let request = parse(&line);
            let answer = request.verb.map(|verb| json!(format!("{verb:?}")));
            let reply = reply(&request.id, answer);
            prop_assert_eq!(reply.iter().filter(|byte| **byte == b'\n').count(), 1);
            let back: Value = serde_json::from_slice(&reply).unwrap();
            prop_assert_eq!(&back["id"], &request.id);
            prop_assert!(back.get("ok").is_some() != back.get("error").is_some());
        }
    }
}
