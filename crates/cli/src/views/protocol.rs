//! The control protocol: lines of JSON, with verbs as rows of a table.
//!
//! The verb list in the greeting and in errors, the check of arguments and the access rights follow
//! from the rows ([`ControlVerb`]), which are in verbs/ctl.rs. Each line from a client, valid or
//! not, gets an answer or a refusal. docs/control.md describes the protocol for authors of clients.

use std::marker::PhantomData;
use std::sync::Arc;

use millrace_drives::unknown_word;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Version of the protocol. It grows only with a change that an older client would misunderstand,
/// not when verbs or fields are added.
pub const CONTROL_VERSION: u32 = 1;
/// Longest request in bytes, without its newline.
pub const LINE_BYTES_MAX: usize = 64 * 1024;

/// Definition of a verb, shared by the daemon and its clients. `Q` is the type of the verb's
/// arguments, `A` the type of the answer.
pub struct Verb<Q, A> {
    pub name: &'static str,
    pub access: Access,
    /// One-line description of the answer, which a test compares with docs/control.md.
    #[cfg_attr(not(test), expect(dead_code))]
    pub summary: &'static str,
    /// True if the answer may have to wait for drives.
    pub takes_long: bool,
    types: PhantomData<fn(Q) -> A>,
}

impl<Q, A> Verb<Q, A> {
    pub const fn new(name: &'static str, access: Access, summary: &'static str) -> Self {
        Verb { name, access, summary, takes_long: false, types: PhantomData }
    }

    pub const fn long(mut self) -> Self {
        self.takes_long = true;
        self
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Verb that every client of the control socket may use. Such a verb does not change how the
    /// daemon serves exports.
    Everybody,
    /// Verb that all clients may use without arguments, to read a setting. Arguments change the
    /// setting, and are for admins only.
    EverybodyToRead,
    /// Verb for root, the daemon's user, and the members of `control-admin-group` only.
    Admins,
}

impl Access {
    fn changes(self, arguments: &Map<String, Value>) -> bool {
        match self {
            Access::Everybody => false,
            Access::EverybodyToRead => arguments.values().any(|value| !value.is_null()),
            Access::Admins => true,
        }
    }
}

/// Entry of the table of verbs. A daemon of type `D` answers the verb.
pub struct ControlVerb<D> {
    pub name: &'static str,
    pub access: Access,
    #[cfg(test)]
    pub summary: &'static str,
    takes_long: bool,
    read: ReadArguments<D>,
}

type ReadArguments<D> = Box<dyn Fn(Map<String, Value>) -> Result<Answer<D>, Refusal> + Send + Sync>;

type Answer<D> = Box<dyn FnOnce(&D) -> Result<Value, Refusal> + Send>;

impl<D: 'static> ControlVerb<D> {
    pub fn new<Q, A>(verb: Verb<Q, A>, answer: fn(&D, &Q) -> Result<A, Refusal>) -> Self
    where
        Q: DeserializeOwned + Send + 'static,
        A: Serialize + 'static,
    {
        let Verb { name, access, takes_long, .. } = verb;
        let read = move |arguments| {
            let asked: Q = serde_json::from_value(Value::Object(arguments))
                .map_err(|error| Refusal::new("bad-request", format!("{name}: {error}")))?;
            let answer = move |daemon: &D| {
                serde_json::to_value(answer(daemon, &asked)?)
                    .map_err(|error| Refusal::new("internal", error.to_string()))
            };
            Ok(Box::new(answer) as Answer<D>)
        };
        ControlVerb {
            name,
            access,
            #[cfg(test)]
            summary: verb.summary,
            takes_long,
            read: Box::new(read),
        }
    }
}

/// Verb with its arguments, ready to be answered by a daemon.
pub struct Question {
    pub changes: bool,
    pub takes_long: bool,
    /// Computes the answer, which becomes the value of `ok` in the reply.
    pub answer: Box<dyn FnOnce() -> Result<Value, Refusal> + Send>,
}

pub fn ask<D: Send + Sync + 'static>(
    verbs: &[ControlVerb<D>],
    daemon: &Arc<D>,
    (name, arguments): (&str, Map<String, Value>),
) -> Result<Question, Refusal> {
    let Some(verb) = verbs.iter().find(|verb| verb.name == name) else {
        return Err(Refusal::new("unknown-verb", unknown_word("verb", name, &names(verbs))));
    };
    let changes = verb.access.changes(&arguments);
    let (answer, daemon) = ((verb.read)(arguments)?, Arc::clone(daemon));
    let answer = Box::new(move || answer(&daemon));
    Ok(Question { changes, takes_long: verb.takes_long, answer })
}

pub fn names<D>(verbs: &[ControlVerb<D>]) -> Vec<&'static str> {
    verbs.iter().map(|verb| verb.name).collect()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub kind: &'static str,
    pub message: String,
}

impl Refusal {
    pub fn new(kind: &'static str, message: impl Into<String>) -> Self {
        Refusal { kind, message: message.into() }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Client's identifier of the request, repeated in the reply; null if there is none.
    pub id: Value,
    /// Name and arguments of the verb, or the refusal of an invalid line.
    pub verb: Result<(String, Map<String, Value>), Refusal>,
}

pub fn parse(line: &[u8]) -> Request {
    let broken = |refusal| Request { id: Value::Null, verb: Err(refusal) };
    if line.len() > LINE_BYTES_MAX {
        return broken(too_long());
    }
    let mut fields: Map<String, Value> = match serde_json::from_slice(line) {
        Ok(fields) => fields,
        Err(error) => {
            let text = format!("not a JSON object: {error}; write {{\"verb\":\"stats\"}}");
            return broken(Refusal::new("bad-request", text));
        }
    };
    let id = fields.remove("id").unwrap_or_default();
    if !(id.is_u64() || id.is_i64() || id.is_string() || id.is_null()) {
        return broken(Refusal::new("bad-request", "id must be a whole number or a string"));
    }
    let verb = match fields.remove("verb") {
        Some(Value::String(name)) => Ok((name, fields)),
        _ => {
            let text = "verb is missing or not a string; the greeting lists the verbs";
            Err(Refusal::new("bad-request", text))
        }
    };
    Request { id, verb }
}

pub fn too_long() -> Refusal {
    let text = format!("a request is one line of at most {LINE_BYTES_MAX} bytes");
    Refusal::new("bad-request", text)
}

/// Returns the daemon's greeting, which is also its answer to `version`.
pub fn greeting(verbs: &[&str]) -> Value {
    json!({
        "millrace": env!("CARGO_PKG_VERSION"),
        "control": CONTROL_VERSION,
        "pid": std::process::id(),
        "verbs": verbs,
    })
}

pub fn reply(id: &Value, outcome: Result<Value, Refusal>) -> Vec<u8> {
    line(&match outcome {
        Ok(ok) => json!({ "id": id, "ok": ok }),
        Err(Refusal { kind, message }) => {
            json!({ "id": id, "error": { "kind": kind, "message": message } })
        }
    })
}

pub fn line(value: &Value) -> Vec<u8> {
    let mut line = value.to_string().into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::requests::{REMOVE, SetGroup, StatsQuery, VERSION};
    use proptest::prelude::*;

    /// A daemon that answers with what it was asked.
    struct EchoArguments;

    fn table() -> Vec<ControlVerb<EchoArguments>> {
        let stats: Verb<StatsQuery, StatsQuery> = Verb::new("stats", Access::Everybody, "");
        let set_group: Verb<SetGroup, SetGroup> = Verb::new("set-group", Access::Admins, "");
        vec![
            ControlVerb::new(VERSION, |_, _| Ok(json!("short"))),
            ControlVerb::new(stats, |_, asked| Ok(*asked)),
            ControlVerb::new(set_group, |_, asked| Ok(asked.clone())),
            ControlVerb::new(REMOVE, |_, _| Err(Refusal::new("refused", "never"))),
        ]
    }

    fn answer(line: &str) -> Result<Value, Refusal> {
        let verb = parse(line.as_bytes()).verb;
        let (name, arguments) = verb?;
        (ask(&table(), &Arc::new(EchoArguments), (&name, arguments))?.answer)()
    }

    fn refusal(line: &str) -> Refusal {
        answer(line).unwrap_err()
    }

    #[test]
    fn a_verb_is_read_with_the_id_that_its_reply_repeats() {
        let request = parse(br#"{"verb":"stats","id":7}"#);
        assert_eq!(request, Request { id: json!(7), verb: Ok(("stats".into(), Map::new())) });
        let request = parse(b" {\"id\":\"a\", \"verb\" : \"x\", \"b\":1}\r");
        let arguments = Map::from_iter([("b".to_owned(), json!(1))]);
        assert_eq!(request, Request { id: json!("a"), verb: Ok(("x".into(), arguments)) });
        assert_eq!(reply(&json!("a"), Ok(json!(1))), b"{\"id\":\"a\",\"ok\":1}\n");
    }

    #[test]
    fn stats_are_those_of_volumes_in_use_unless_all_are_asked_for() {
        assert_eq!(answer(r#"{"verb":"stats","id":1}"#), Ok(json!({})));
        assert_eq!(answer(r#"{"verb":"stats","all":false}"#), Ok(json!({})));
        assert_eq!(answer(r#"{"verb":"stats","all":true}"#), Ok(json!({"all": true})));
    }

    #[test]
    fn settings_of_a_group_are_words_or_numbers() {
        let line = r#"{"verb":"set-group","group":"g","settings":{"iops":100,"burst":"1s"}}"#;
        let settings = json!({"iops": "100", "burst": "1s"});
        assert_eq!(answer(line), Ok(json!({"group": "g", "settings": settings})));
        let wrong = refusal(r#"{"verb":"set-group","group":"g","settings":{"iops":null}}"#);
        assert!(wrong.message.contains("settings: iops is null; write a string"), "{wrong:?}");
    }

    #[test]
    fn what_is_wrong_is_said_with_what_to_do() {
        let unknown = refusal(r#"{"verb":"stat"}"#);
        let text = "unknown verb \"stat\"; choose version, stats, set-group or remove; did you mean \"stats\"?";
        assert_eq!(unknown, Refusal::new("unknown-verb", text));
        let text = "version: unknown field `drive`, there are no fields";
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
    fn fields_that_two_verbs_share_are_known_and_others_refused() {
        let remove = |more: &str| {
            refusal(&format!(r#"{{"verb":"remove","section":"drive","name":"d"{more}}}"#))
        };
        assert_eq!(remove(r#","dry_run":true,"force":true"#).kind, "refused");
        let unknown = Refusal::new("bad-request", "remove: unknown field `forced`");
        assert_eq!(remove(r#","forced":true"#), unknown);
        assert_eq!(remove(r#","force":7"#).kind, "bad-request");
    }

    #[test]
    fn access_and_arguments_decide_whether_a_request_is_for_admins() {
        let changes =
            |access: Access, text: &str| access.changes(&serde_json::from_str(text).unwrap());
        let (with, without) = (r#"{"level":"debug"}"#, r#"{"level":null}"#);
        let of = |access| [changes(access, with), changes(access, without), changes(access, "{}")];
        assert_eq!(of(Access::Everybody), [false; 3]);
        assert_eq!(of(Access::EverybodyToRead), [true, false, false]);
        assert_eq!(of(Access::Admins), [true; 3]);
    }

    /// Bytes, texts like JSON, and requests that are almost right.
    fn hostile() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..300),
            "[\\[\\]{}\":,0-9a-z\\\\ ]{0,80}".prop_map(String::into_bytes),
            "\\{\"verb\": ?\"(stats|version|set-group|remove|[a-z]{0,4})\"(,\"id\":(-?[0-9]{1,30}|\"\\PC{0,9}\"))?\\}"
                .prop_map(String::into_bytes),
        ]
    }

    proptest! {
        #[test]
        fn any_line_gives_one_reply_that_is_one_line_of_json(line in hostile()) {
            let Request { id, verb } = parse(&line);
            let asked = verb.and_then(|(name, arguments)| {
                ask(&table(), &Arc::new(EchoArguments), (&name, arguments))
            });
            let reply = reply(&id, asked.and_then(|question| (question.answer)()));
            prop_assert_eq!(reply.iter().filter(|byte| **byte == b'\n').count(), 1);
            let back: Value = serde_json::from_slice(&reply).unwrap();
            prop_assert_eq!(&back["id"], &id);
            prop_assert!(back.get("ok").is_some() != back.get("error").is_some());
        }
    }
}
