//! `ColumnTable`: a text format with one I/O per line, as a table of its columns.
//!
//! A format is data: an example, how a line is split, and each column's name and meaning.
//! `ColumnParser` reads the lines of any such format; `formats/tables.rs` has the tables. Columns
//! are read from left to right, so that an error names the first column that is wrong.

use millrace_block::Op;

use super::TraceIo;
use super::devices::DeviceNames;
use super::error::shown;
use super::parser::{Fields, LineKind, LineParser, Problem, decimal, scaled, whole};
use super::pending::StreamState;

pub(super) struct ColumnTable {
    pub(super) example: &'static str,
    /// Header that must be the first line of every file. `None` if there is no such rule: the first
    /// line may then have column names or an I/O.
    pub(super) head: Option<&'static str>,
    pub(super) split: for<'a> fn(&'a str) -> Result<Fields<'a>, Problem>,
    /// Name and meaning of each column. Fields after the last column are ignored.
    pub(super) columns: &'static [(&'static str, Column)],
    /// Text for the user about lines with `Action::Skip`, shown after the number of such lines.
    pub(super) skipped: &'static str,
    pub(super) note: Option<&'static str>,
}

impl ColumnTable {
    pub(super) fn has_time(&self) -> bool {
        self.columns.iter().any(|(_, column)| matches!(column, Column::Time(_)))
    }
}

pub(super) enum Column {
    Time(TimeUnit),
    /// Latency. An empty field or 0 means unknown.
    Latency(TimeUnit),
    /// Offset of the I/O on the device, as a number of units. The variant's value is the size of a
    /// unit in bytes.
    Offset(u64),
    /// Length of the I/O, as a number of units. The variant's value is the size of a unit in bytes.
    Length(u64),
    /// Operation: one of these words, in upper or lower case.
    Op(&'static [(&'static str, Action)]),
    /// Part of the device's name. The variant's value is the text that precedes this part in the
    /// name, such as a separator.
    Device(&'static str),
    /// Number of the device, which also serves as its name.
    DeviceNumber,
    /// Number that the reader checks but does not use.
    Number,
    Ignored,
}

#[derive(Clone, Copy)]
pub(super) enum TimeUnit {
    /// Integer number of units. Each unit is this many nanoseconds.
    Ns(u64),
    Seconds,
}

impl TimeUnit {
    fn ns(self, name: &str, text: &str) -> Result<u64, Problem> {
        match self {
            TimeUnit::Ns(unit) => scaled(name, whole(name, text)?, unit),
            TimeUnit::Seconds => decimal(name, text, 9),
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum Action {
    /// An I/O. For a flush, the columns after the operation are not read.
    Io(Op),
    /// A pause, whose length in microseconds is in the next column. Ignored in formats that have a
    /// time for each I/O.
    Wait,
    /// A line without an operation. The reader skips and counts such lines.
    Skip,
    Nothing,
}

pub(super) struct ColumnParser {
    table: &'static ColumnTable,
    device: String,
    waited_ns: u64,
    skipped: u64,
    io: Option<TraceIo>,
}

impl ColumnParser {
    pub(super) fn boxed(table: &'static ColumnTable) -> Box<dyn LineParser> {
        let (device, waited_ns, skipped, io) = (String::new(), 0, 0, None);
        Box::new(ColumnParser { table, device, waited_ns, skipped, io })
    }

    fn head(&self, text: &str) -> Result<Option<LineKind>, Problem> {
        match self.table.head {
            Some(head) if text == head => Ok(Some(LineKind::Proof)),
            Some(head) => Err(format!("found {}; the first line must be \"{head}\"", shown(text))),
            None => Ok(is_head(text).then_some(LineKind::Other)),
        }
    }
}

impl LineParser for ColumnParser {
    fn example(&self) -> &'static str {
        self.table.example
    }

    fn line(
        &mut self,
        number: u64,
        text: &str,
        devices: &mut DeviceNames,
    ) -> Result<LineKind, Problem> {
        if number == 1
            && let Some(kind) = self.head(text)?
        {
            return Ok(kind);
        }
        let ColumnTable { columns, .. } = self.table;
        let fields = (self.table.split)(text)?;
        fields.at_least(if self.table.head.is_none() { columns.len() } else { 0 })?;
        let mut io = TraceIo { at_ns: self.waited_ns, ..TraceIo::EMPTY };
        self.device.clear();
        for (place, (name, column)) in columns.iter().enumerate() {
            let field = fields.at(place)?;
            match column {
                Column::Time(unit) => io.at_ns = unit.ns(name, field)?,
                Column::Latency(_) if field.is_empty() => {}
                Column::Latency(unit) => {
                    io.latency_ns = Some(unit.ns(name, field)?).filter(|latency| *latency > 0);
                }
                Column::Offset(unit) => io.offset_bytes = scaled(name, whole(name, field)?, *unit)?,
                Column::Length(unit) => io.len_bytes = scaled(name, whole(name, field)?, *unit)?,
                Column::Device(before) => self.device.extend([before, field]),
                Column::DeviceNumber => {
                    whole(name, field)?;
                    self.device.push_str(field);
                }
                Column::Number => _ = whole(name, field)?,
                Column::Ignored => {}
                Column::Op(words) => match action(name, field, words)? {
                    Action::Io(op) => io.op = op,
                    Action::Nothing => return Ok(LineKind::Other),
                    Action::Skip => {
                        self.skipped += 1;
                        return Ok(LineKind::Record);
                    }
                    Action::Wait => {
                        let wait_ns = TimeUnit::Ns(1_000).ns("wait", fields.at(place + 1)?)?;
                        let waited = self.waited_ns.checked_add(wait_ns);
                        self.waited_ns = waited.ok_or("waits are too long")?;
                        return Ok(LineKind::Other);
                    }
                },
            }
            if io.op == Op::Flush {
                break;
            }
        }
        io.device = devices.number(&self.device)?;
        self.io = Some(io);
        Ok(LineKind::Record)
    }

    fn pop(&mut self, _more: StreamState) -> Option<TraceIo> {
        self.io.take()
    }

    fn notes(&self) -> Vec<String> {
        let skipped =
            (self.skipped > 0).then(|| format!("{} {}", self.skipped, self.table.skipped));
        skipped.into_iter().chain(self.table.note.map(str::to_owned)).collect()
    }
}

fn action(name: &str, text: &str, words: &[(&'static str, Action)]) -> Result<Action, Problem> {
    let found = words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text));
    found.map(|(_, action)| *action).ok_or_else(|| {
        let named = |(word, _): &(&'static str, Action)| match *word {
            "" => "nothing",
            word => word,
        };
        let all: Vec<&str> = words.iter().map(named).collect();
        let (last, first) = all.split_last().expect("every format has operations");
        format!("{name} is {}; {} or {last} is expected", shown(text), first.join(", "))
    })
}

/// Returns true if each field of a line begins with a letter, as in a line of column names.
fn is_head(text: &str) -> bool {
    text.split(',').all(|field| {
        let first = field.trim().trim_start_matches('"').bytes().next();
        first.is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
    })
}
