//! QEMU's monitor: commands as lines of JSON, and the events between their answers.
//!
//! Owns the connection. Called by `Guest` for actions that an administrator takes on a running
//! machine.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::poll_within;

/// Limit for QEMU to make its socket, and for each line.
const LIMIT: Duration = Duration::from_secs(120);

/// A connection to the monitor of a running QEMU.
pub struct Monitor {
    lines: BufReader<UnixStream>,
    events: Vec<Value>,
}

impl Monitor {
    /// Connects to the socket of a QEMU that may be just starting.
    pub fn connect(socket: &Path) -> Self {
        let stream = poll_within(LIMIT, || UnixStream::connect(socket).ok());
        let stream = stream.expect("QEMU makes its monitor's socket");
        stream.set_read_timeout(Some(LIMIT)).expect("a limit that is not zero");
        let mut monitor = Self { lines: BufReader::new(stream), events: Vec::new() };
        let greeting = monitor.line();
        assert!(greeting.get("QMP").is_some(), "{greeting}");
        monitor.order("qmp_capabilities", &json!({}));
        monitor
    }

    /// Runs a command, which must succeed.
    pub fn order(&mut self, command: &str, arguments: &Value) {
        let order = json!({ "execute": command, "arguments": arguments });
        let sent = writeln!(self.lines.get_mut(), "{order}");
        sent.unwrap_or_else(|error| panic!("{order}: {error}"));
        loop {
            let line = self.line();
            match line.get("event") {
                Some(_) => self.events.push(line),
                None => return assert!(line.get("return").is_some(), "{order}: {line}"),
            }
        }
    }

    /// Waits until QEMU reports that a device is gone.
    pub fn until_deleted(&mut self, device: &str) {
        let is_it =
            |line: &Value| line["event"] == "DEVICE_DELETED" && line["data"]["device"] == device;
        while !self.events.iter().any(is_it) {
            let line = self.line();
            self.events.push(line);
        }
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        let read = self.lines.read_line(&mut line);
        read.unwrap_or_else(|error| panic!("QEMU's monitor says nothing: {error}"));
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }
}
