//! `Page`: what an experiment found, as plain data: checks, figures, tables and machines.
//!
//! Owns no logic but the arithmetic of a deviation. Filled by experiments such as `millrace-lab
//! paper`; rendered by `html` (one file that needs no network), `text` (for a terminal) and `json`.
//! The plots are SVG written here: they follow the reader's colours, print, and need no script,
//! which neither uPlot (a canvas and 50 KB of script) nor plotters (fixed colours) does. A page
//! gives the same bytes each time.

mod escape;
mod heat;
mod html;
mod machines;
mod plot;
mod scale;
mod text;

pub use heat::{HeatMap, HeatPanel};
pub use machines::{Constant, MachineTable, ORIGINS, Source};
use serde::{Deserialize, Serialize, Serializer};

/// How a check counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckKind {
    /// Given to the model; not counted.
    Input,
    /// A statement that must hold.
    Qualitative,
    /// Numbers to come near to.
    Quantitative,
    /// Numbers of which only the order must be right.
    #[serde(rename = "order only")]
    OrderOnly,
}

impl CheckKind {
    /// The kind as people and JSON read it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CheckKind::Input => "input",
            CheckKind::Qualitative => "qualitative",
            CheckKind::Quantitative => "quantitative",
            CheckKind::OrderOnly => "order only",
        }
    }
}

/// Whether a check holds. In JSON `true`, `false` or `"not there yet"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The check holds.
    Yes,
    /// The check does not hold.
    No,
    /// What it needs is not written, or was not run.
    NotYet,
}

impl Verdict {
    /// The verdict as people read it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Yes => "holds",
            Verdict::No => "does not hold",
            Verdict::NotYet => "not there yet",
        }
    }
}

impl From<bool> for Verdict {
    fn from(holds: bool) -> Verdict {
        if holds { Verdict::Yes } else { Verdict::No }
    }
}

impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Verdict::Yes => serializer.serialize_bool(true),
            Verdict::No => serializer.serialize_bool(false),
            Verdict::NotYet => serializer.serialize_str(self.name()),
        }
    }
}

/// What a paper says or we found: in words, and the numbers in them.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Quantity {
    /// As a person reads it, with units.
    pub text: String,
    /// The numbers to compare, in base units, in an order that both sides keep; may be empty.
    pub numbers: Vec<f64>,
}

impl Quantity {
    /// Words and numbers.
    pub fn new(text: impl Into<String>, numbers: impl Into<Vec<f64>>) -> Quantity {
        Quantity { text: text.into(), numbers: numbers.into() }
    }
}

/// One statement of a paper beside ours.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// Its name, such as `mq.sq-cap`.
    pub id: String,
    /// How it counts.
    pub kind: CheckKind,
    /// What the paper says.
    pub paper: Quantity,
    /// What we found.
    pub ours: Quantity,
    /// Ours over the paper's less 1, of the number that is farthest off; none where there are none
    /// to compare.
    pub deviation: Option<f64>,
    /// The verdict.
    pub holds: Verdict,
    /// Why, or what is believed to be wrong; may be empty.
    pub note: String,
    /// What a second run found, without some mechanisms; none unless there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without: Option<AblationResult>,
}

/// What a check found with some mechanisms switched off.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AblationResult {
    /// Their words, with commas between.
    pub mechanisms: String,
    /// What that run found.
    pub ours: Quantity,
    /// Its numbers over those of the whole run less 1, of the number that changed most; none where
    /// there are none to compare.
    pub change: Option<f64>,
    /// As that of the check.
    pub deviation: Option<f64>,
    /// The verdict that it would have.
    pub holds: Verdict,
}

impl Check {
    /// A check with this verdict; the deviation is that of the numbers.
    pub fn new(
        id: &str,
        kind: CheckKind,
        (paper, ours): (Quantity, Quantity),
        holds: impl Into<Verdict>,
    ) -> Check {
        let deviation = deviation(&paper.numbers, &ours.numbers);
        let (id, holds) = (id.to_owned(), holds.into());
        Check { id, kind, paper, ours, deviation, holds, note: String::new(), without: None }
    }

    /// A quantitative check: holds if every number is within `tolerance`, a fraction, of the
    /// paper's.
    pub fn within(id: &str, paper: Quantity, ours: Quantity, tolerance: f64) -> Check {
        let off = deviation(&paper.numbers, &ours.numbers);
        let holds = off.is_some_and(|off| off.abs() <= tolerance);
        Check::new(id, CheckKind::Quantitative, (paper, ours), holds)
    }

    /// A check that nothing was run for.
    pub fn not_yet(id: &str, kind: CheckKind, paper: Quantity) -> Check {
        Check::new(id, kind, (paper, Quantity::default()), Verdict::NotYet)
    }

    /// This check with a note.
    #[must_use]
    pub fn with_note(self, note: impl Into<String>) -> Check {
        Check { note: note.into(), ..self }
    }
}

/// Ours over the paper's less 1, of the number that is farthest off; none unless both have the same
/// count of numbers, at least one, and the paper's are not 0.
#[must_use]
pub fn deviation(paper: &[f64], ours: &[f64]) -> Option<f64> {
    if paper.len() != ours.len() || paper.contains(&0.0) {
        return None;
    }
    let off = paper.iter().zip(ours).map(|(paper, ours)| ours / paper - 1.0);
    off.filter(|off| off.is_finite()).max_by(|a, b| a.abs().total_cmp(&b.abs()))
}

/// What the numbers of an axis are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Numbers shown as they are.
    Plain,
    /// Counts or rates, shown with K, M and G (factors of 1,000).
    Count,
    /// Nanoseconds, shown as ns, us, ms or s.
    Nanoseconds,
    /// Fractions, shown as percent.
    Percent,
}

/// How an axis is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Evenly, from 0.
    Linear,
    /// By factors of ten.
    Log,
}

/// Where the points of a series come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeriesKind {
    /// We ran it: a solid line.
    Ours,
    /// The paper states it: hollow points and a dotted line.
    Paper,
    /// We ran it on a machine that nobody has measured: a dashed line, marked in the legend.
    Prediction,
    /// We ran it with some mechanisms switched off: a thin dashed line.
    Without,
}

/// One line of a panel. Lines of one name have one colour in all panels of a figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    /// The design, such as `MQ`.
    pub name: String,
    /// Where it comes from.
    pub kind: SeriesKind,
    /// x and y, in the order of x.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// A line that we ran.
    pub fn ours(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.into(), kind: SeriesKind::Ours, points }
    }

    /// What a paper states.
    pub fn theirs(name: impl Into<String>, points: impl Into<Vec<(f64, f64)>>) -> Series {
        Series { name: name.into(), kind: SeriesKind::Paper, points: points.into() }
    }

    /// The name with its kind, as legends and tables show it.
    #[must_use]
    pub fn label(&self) -> String {
        match self.kind {
            SeriesKind::Ours => self.name.clone(),
            SeriesKind::Paper => format!("{}, paper", self.name),
            SeriesKind::Prediction => format!("{}, prediction", self.name),
            SeriesKind::Without => format!("{}, without", self.name),
        }
    }
}

/// A line across a panel at one x, such as the core at which a socket begins.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mark {
    /// Where.
    pub x: f64,
    /// What begins there; a word or two.
    pub label: String,
}

/// One plot.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Panel {
    /// What tells it from its neighbours, such as the machine.
    pub title: String,
    /// Label of the x axis, such as `cores`.
    pub x_label: String,
    /// Label of the y axis without the prefix of its unit, such as `IOPS`.
    pub y_label: String,
    /// What its y values are.
    pub y_unit: Unit,
    /// How its y axis is divided.
    pub y_scale: Scale,
    /// Its lines.
    pub series: Vec<Series>,
    /// Lines across; may be empty.
    pub marks: Vec<Mark>,
}

impl Panel {
    /// A plot on even axes without marks; y has a label and a unit.
    pub fn new(
        title: impl Into<String>,
        x_label: &str,
        (y_label, y_unit): (&str, Unit),
        series: Vec<Series>,
    ) -> Panel {
        Panel {
            title: title.into(),
            x_label: x_label.into(),
            y_label: y_label.into(),
            y_unit,
            y_scale: Scale::Linear,
            series,
            marks: Vec::new(),
        }
    }
}

/// A figure: panels under one title.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// Its name, such as `fig4`; letters, digits and dashes.
    pub id: String,
    /// Title.
    pub title: String,
    /// What to see in it.
    pub caption: String,
    /// Its plots.
    pub panels: Vec<Panel>,
}

impl Figure {
    /// A figure of these plots.
    pub fn new(
        id: &str,
        title: impl Into<String>,
        caption: &str,
        panels: impl IntoIterator<Item = Panel>,
    ) -> Figure {
        let panels = panels.into_iter().collect();
        Figure { id: id.into(), title: title.into(), caption: caption.into(), panels }
    }
}

/// A table of a paper, or of a result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DataTable {
    /// Its name, such as `table2`; letters, digits and dashes.
    pub id: String,
    /// Title.
    pub title: String,
    /// What to see in it.
    pub caption: String,
    /// Heads of the columns.
    pub head: Vec<String>,
    /// Rows, each as long as the head.
    pub rows: Vec<Vec<String>>,
}

impl DataTable {
    /// A table; every row is as long as the head.
    pub fn new(
        (id, title): (&str, impl Into<String>),
        caption: &str,
        head: impl IntoIterator<Item = impl Into<String>>,
        rows: Vec<Vec<String>>,
    ) -> DataTable {
        let head = head.into_iter().map(Into::into).collect();
        DataTable { id: id.into(), title: title.into(), caption: caption.into(), head, rows }
    }
}

/// All that an experiment found.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Page {
    /// Title.
    pub title: String,
    /// Paragraphs of introduction.
    pub intro: Vec<String>,
    /// What a reader must know to read the rest right, such as what was left out; may be empty.
    pub remarks: Vec<String>,
    /// Names and values, such as the seed and the command that makes the page again.
    pub facts: Vec<(String, String)>,
    /// Whose statements the checks hold against.
    #[serde(skip)]
    pub against: ReferenceKind,
    /// Checks, in the order of the papers' list.
    pub checks: Vec<Check>,
    /// Figures.
    pub figures: Vec<Figure>,
    /// Tables.
    pub tables: Vec<DataTable>,
    /// Machines.
    pub machines: Vec<MachineTable>,
}

/// Whose statements checks compare ours with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReferenceKind {
    /// A paper's.
    #[default]
    Paper,
    /// What millrace promises itself.
    Promise,
}

impl ReferenceKind {
    /// The heads of the columns of both sides.
    fn heads(self) -> [&'static str; 2] {
        match self {
            ReferenceKind::Paper => ["paper", "ours"],
            ReferenceKind::Promise => ["expected", "found"],
        }
    }
}

/// How many checks have which verdict; inputs are counted apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Hold.
    pub hold: usize,
    /// Do not hold.
    pub fail: usize,
    /// Not there yet.
    pub missing: usize,
    /// Inputs.
    pub inputs: usize,
}

impl Page {
    /// Counts the verdicts.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for check in &self.checks {
            let count = match (check.kind, check.holds) {
                (CheckKind::Input, _) => &mut tally.inputs,
                (_, Verdict::Yes) => &mut tally.hold,
                (_, Verdict::No) => &mut tally.fail,
                (_, Verdict::NotYet) => &mut tally.missing,
            };
            *count += 1;
        }
        tally
    }

    /// One HTML file that needs nothing else.
    #[must_use]
    pub fn html(&self) -> String {
        html::page(self, &[])
    }

    /// One HTML file, with heat maps between the figures and the tables.
    #[must_use]
    pub fn html_with(&self, maps: &[HeatMap]) -> String {
        html::page(self, maps)
    }

    /// Tables for a terminal: x down, series across; then the checks.
    #[must_use]
    pub fn text(&self) -> String {
        text::page(self)
    }

    /// `{"checks": [...], "figures": [...], ...}`; points are pairs of x and y.
    #[must_use]
    pub fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        text.expect("plain data with text for keys is always JSON")
    }
}

#[cfg(test)]
mod tests;
