//! Log of nbdkit's log filter: one line when a request arrives, and one when it completes.
//!
//! `2020-08-06 02:07:23.080415 connection=1 Read id=1 offset=0x0 count=0x200 ...` and `...
//! connection=1 ...Read id=1 return=0`. A device is an export, named on the `Connect` line. Times
//! are local, so a log across the end of summer time steps back by an hour. Requests that move no
//! data (extents, cache) are counted; other lines are ignored.
//!
//! Source: nbdkit-log-filter(1), "EXAMPLES"; nbdkit 1.32's log.

use std::collections::HashMap;

use millrace_block::Op;

use crate::trace::TraceIo;
use crate::trace::devices::DeviceNames;
use crate::trace::error::shown;
use crate::trace::parser::{LineKind, LineParser, Problem, whole};
use crate::trace::pending::{PENDING_MAX, Pending, StreamState};

const CONNECTIONS_MAX: usize = 65_536;

#[derive(Debug, Default)]
pub(in crate::trace) struct NbdkitLog {
    pending: Pending,
    /// Requests without a reply. Key: connection, and request id. Value: number of the I/O in
    /// `pending`.
    open: HashMap<(u64, u64), u64>,
    exports: HashMap<u64, u32>,
    skipped: u64,
}

impl NbdkitLog {
    fn connect(
        &mut self,
        connection: u64,
        arguments: &str,
        devices: &mut DeviceNames,
    ) -> Result<(), Problem> {
        let name = arguments.strip_prefix("export=\"").and_then(|rest| rest.split('"').next());
        let name = name.filter(|name| !name.is_empty()).unwrap_or(DEFAULT_EXPORT);
        if self.exports.len() < CONNECTIONS_MAX {
            self.exports.insert(connection, devices.number(name)?);
        }
        Ok(())
    }

    fn request(
        &mut self,
        op: Op,
        (connection, arguments, at_ns): (u64, &str, u64),
        devices: &mut DeviceNames,
    ) -> Result<(), Problem> {
        let id = whole("id", argument(arguments, "id").unwrap_or_default())?;
        let device = match self.exports.get(&connection) {
            Some(device) => *device,
            None => devices.number(DEFAULT_EXPORT)?,
        };
        let (offset_bytes, len_bytes) = match op {
            Op::Flush => (0, 0),
            _ => (hex(arguments, "offset")?, hex(arguments, "count")?),
        };
        let fua = op.is_write() && argument(arguments, "fua") == Some("1");
        let latency_ns = None;
        let io = TraceIo { at_ns, device, op, fua, offset_bytes, len_bytes, latency_ns };
        let number = self.pending.push(io);
        if let Some(before) = self.open.insert((connection, id), number) {
            // An id that is used again means that the log continues with another run, so the
            // earlier request never completed.
            self.pending.release(before);
        }
        // Forget requests that `pending` has already output without a latency. Their replies are no
        // longer of use.
        if self.open.len() > 2 * PENDING_MAX {
            self.open.retain(|_, number| self.pending.holds(*number));
        }
        Ok(())
    }

    fn answer(
        &mut self,
        verb: &str,
        connection: u64,
        arguments: &str,
        at_ns: u64,
    ) -> Result<(), Problem> {
        if operation(verb).is_none() {
            return Ok(());
        }
        let id = whole("id", argument(arguments, "id").unwrap_or_default())?;
        if let Some(number) = self.open.remove(&(connection, id)) {
            self.pending.answer(number, at_ns);
        }
        Ok(())
    }
}

const DEFAULT_EXPORT: &str = "nbd";

fn argument<'a>(arguments: &'a str, name: &str) -> Option<&'a str> {
    let mut words = arguments.split(' ');
    words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// Parses the value of the argument `name`, a hexadecimal number that begins with 0x.
fn hex(arguments: &str, name: &str) -> Result<u64, Problem> {
    let text = argument(arguments, name).unwrap_or_default();
    let number = text.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number
        .ok_or_else(|| format!("{name} is {}; 0x and hexadecimal digits are expected", shown(text)))
}

/// Converts a local date and time with microseconds to nanoseconds since 1970, ignoring the time
/// zone.
fn moment(text: &str) -> Result<u64, Problem> {
    const FORM: &[u8] = b"0000-00-00 00:00:00.000000";
    let parse = || {
        let bytes = text.as_bytes().get(..FORM.len())?;
        let fits = |(byte, form): (&u8, &u8)| match form {
            b'0' => byte.is_ascii_digit(),
            form => byte == form,
        };
        let number = |at: std::ops::Range<usize>| {
            bytes[at].iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
        };
        if !bytes.iter().zip(FORM).all(fits) {
            return None;
        }
        let (year, month, day) = (number(0..4), number(5..7), number(8..10));
        let valid = year >= 1970 && (1..=12).contains(&month) && (1..=31).contains(&day);
        let days = valid.then(|| days(year, month, day))?;
        let seconds = number(11..13) * 3_600 + number(14..16) * 60 + number(17..19);
        // Nanoseconds since 1970 overflow 64 bits in the year 2554.
        let whole_ns = (days * 86_400 + seconds).checked_mul(1_000_000_000)?;
        whole_ns.checked_add(number(20..26) * 1_000)
    };
    parse().ok_or_else(|| format!("{} where a date and a time are expected", shown(text)))
}

/// Returns the days from 1970 to a date of the Gregorian calendar. Years are counted from March, so
/// that the leap day is the last day. 2000-03-01 is day 11,017.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leaps = year / 4 - year / 100 + year / 400;
    let before_1970 = 1969 * 365 + 1969 / 4 - 1969 / 100 + 1969 / 400 + 306;
    year * 365 + leaps + (month * 153 + 2) / 5 + day - 1 - before_1970
}

impl LineParser for NbdkitLog {
    fn example(&self) -> &'static str {
        "2020-08-06 02:07:23.080415 connection=1 Read id=1 offset=0x0 count=0x200 ..."
    }

    fn line(
        &mut self,
        _number: u64,
        text: &str,
        devices: &mut DeviceNames,
    ) -> Result<LineKind, Problem> {
        let at_ns = moment(text)?;
        let rest = text.splitn(3, ' ').nth(2).unwrap_or_default();
        let Some(rest) = rest.strip_prefix("connection=") else {
            return Ok(LineKind::Record);
        };
        let (connection, rest) =
            rest.split_once(' ').ok_or("the command after the connection is missing")?;
        let connection = whole("connection", connection)?;
        let (verb, arguments) = rest.split_once(' ').unwrap_or((rest, ""));
        if let Some(verb) = verb.strip_prefix("...") {
            self.answer(verb, connection, arguments, at_ns)?;
            return Ok(LineKind::Record);
        }
        match (verb, operation(verb)) {
            (_, Some(op)) => self.request(op, (connection, arguments, at_ns), devices)?,
            ("Connect", _) => self.connect(connection, arguments, devices)?,
            ("Disconnect", _) => _ = self.exports.remove(&connection),
            _ => self.skipped += u64::from(argument(arguments, "id").is_some()),
        }
        Ok(LineKind::Record)
    }

    fn pop(&mut self, more: StreamState) -> Option<TraceIo> {
        self.pending.pop(more)
    }

    fn notes(&self) -> Vec<String> {
        let skipped = self.skipped;
        let note = || format!("{skipped} requests that move no data (extents, cache) were skipped");
        (skipped > 0).then(note).into_iter().collect()
    }
}

fn operation(verb: &str) -> Option<Op> {
    match verb {
        "Read" => Some(Op::Read),
        "Write" => Some(Op::Write),
        "Flush" => Some(Op::Flush),
        "Trim" => Some(Op::Discard),
        "Zero" => Some(Op::WriteZeroes),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        let days = [(1970, 1, 1), (1970, 3, 1), (2000, 2, 29), (2000, 3, 1), (2026, 11, 24)]
            .map(|(year, month, day)| days(year, month, day));
        assert_eq!(days, [0, 59, 11_016, 11_017, 20_781]);
        assert_eq!(moment("1970-01-02 00:00:01.000002"), Ok(86_401_000_002_000));
        assert_eq!(moment("2554-07-21 23:34:33.709551"), Ok(u64::MAX / 1000 * 1000));
        for text in [
            "1970-1-02 00:00:01.000002",
            "x y",
            "1970-13-01 00:00:00.000000",
            "2554-07-21 23:34:33.709552",
            "9999-12-31 23:59:59.999999",
        ] {
            assert!(moment(text).is_err(), "{text}");
        }
    }
}
