//! A connection to the control socket of a daemon, for verbs that have no command of their own.
//!
//! Pure but for the socket, which is `c` in the daemon's directory. Called by the tests of locks
//! and recordings.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::Daemon;

/// The connection.
pub struct Control(BufReader<UnixStream>);

impl Control {
    /// Connects, and reads the greeting.
    ///
    /// # Panics
    ///
    /// If nobody listens, or greets otherwise.
    #[must_use]
    pub fn connect(daemon: &Daemon) -> Self {
        let socket = UnixStream::connect(daemon.dir().join("c")).expect("the daemon listens");
        let mut control = Control(BufReader::new(socket));
        assert_eq!(control.line()["control"], 1);
        control
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("the daemon answers in UTF-8");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// The answer to a verb, or its error.
    ///
    /// # Panics
    ///
    /// If there is neither.
    pub fn reply(&mut self, verb: &str) -> Value {
        writeln!(self.0.get_mut(), "{{\"verb\":{verb:?}}}").expect("the daemon reads");
        self.line()
    }

    /// The result of a verb.
    ///
    /// # Panics
    ///
    /// If the daemon refuses it.
    pub fn ok(&mut self, verb: &str) -> Value {
        let reply = self.reply(verb);
        assert_eq!(reply.get("error"), None, "{verb}");
        reply["ok"].clone()
    }

    /// The kind of the error that a verb is refused with.
    ///
    /// # Panics
    ///
    /// If it is not.
    pub fn refused(&mut self, verb: &str) -> String {
        self.reply(verb)["error"]["kind"].as_str().expect("it is refused").to_owned()
    }
}
