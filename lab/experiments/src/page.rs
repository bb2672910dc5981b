//! `Page`: the results of an experiment as plain data: checks, figures, tables and machines.
//!
//! The only logic here is the calculation of deviations. Experiments such as `millrace-lab paper`
//! fill a page; `html` (one self-contained file), `text` (for a terminal) and `json` render it.
//! Plots are SVG that this module writes: they adapt to the reader's colours, can be printed, and
//! need no script, unlike plots by uPlot (a canvas and 50 KB of script) and by the crate plotters
//! (fixed colours). Rendering is deterministic.
#![allow(missing_docs)] // Names of most fields and variants say what they are.

mod escape;
mod heat;
mod html;
mod machines;
mod plot;
mod scale;
mod text;

pub use heat::HeatCells;
pub use machines::{Constant, MachineTable, ORIGINS, Source};
use serde::{Deserialize, Serialize, Serializer};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckKind {
    /// A value that the model takes from the paper as an input. Not counted as a check.
    Input,
    /// A statement that either holds or does not, without a tolerance.
    Qualitative,
    /// Numbers that must be within a tolerance of the paper's.
    Quantitative,
    /// Numbers that must rank in the same order as the paper's. Their values may differ.
    #[serde(rename = "order only")]
    OrderOnly,
}

impl CheckKind {
    /// Returns the name of this kind of check, as shown to people and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            CheckKind::Input => "input",
            CheckKind::Qualitative => "qualitative",
            CheckKind::Quantitative => "quantitative",
            CheckKind::OrderOnly => "order only",
        }
    }
}

/// Result of a check. In JSON: `true`, `false`, or `"not there yet"` for [`CheckVerdict::NotYet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckVerdict {
    Yes,
    No,
    /// The check was not made, because a part that it needs was not run or is not implemented.
    NotYet,
}

impl CheckVerdict {
    /// Returns the verdict on a check in words, as shown to people.
    pub fn name(self) -> &'static str {
        match self {
            CheckVerdict::Yes => "holds",
            CheckVerdict::No => "does not hold",
            CheckVerdict::NotYet => "not there yet",
        }
    }
}

impl From<bool> for CheckVerdict {
    fn from(holds: bool) -> CheckVerdict {
        if holds { CheckVerdict::Yes } else { CheckVerdict::No }
    }
}

impl Serialize for CheckVerdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            CheckVerdict::Yes => serializer.serialize_bool(true),
            CheckVerdict::No => serializer.serialize_bool(false),
            CheckVerdict::NotYet => serializer.serialize_str(self.name()),
        }
    }
}

/// A statement of a paper, or a result of our run: its text, and the numbers in the text.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Quantity {
    /// Text with units, as shown to people.
    pub text: String,
    /// Numbers in the field `text`, in base units; may be empty. A check compares the paper's list
    /// with our list by index, so the two lists must have the same order.
    pub numbers: Vec<f64>,
}

impl Quantity {
    pub fn new(text: impl Into<String>, numbers: impl Into<Vec<f64>>) -> Quantity {
        Quantity { text: text.into(), numbers: numbers.into() }
    }
}

/// A check: a statement of a paper, compared with our result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// Name of the check, such as `mq.sq-cap`.
    pub id: String,
    pub kind: CheckKind,
    pub paper: Quantity,
    pub ours: Quantity,
    /// Largest relative deviation of our numbers: ours divided by the paper's, minus 1. None if
    /// there is no pair of numbers to compare.
    pub deviation: Option<f64>,
    pub holds: CheckVerdict,
    /// Explanation of the verdict or of a deviation; may be empty.
    pub note: String,
    /// Result of the check in a second run, with some mechanisms of the simulated machine or kernel
    /// switched off; `None` without a second run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without: Option<AblationResult>,
}

/// Result of a check in a run with some mechanisms of the simulated machine or kernel switched off.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AblationResult {
    /// Names of the mechanisms that were switched off in the simulated machine or kernel, separated
    /// by commas.
    pub mechanisms: String,
    pub ours: Quantity,
    /// Largest relative change of our numbers from the first run to the second (new / old - 1).
    /// `None` if there are no numbers to compare.
    pub change: Option<f64>,
    /// Relative deviation of this run's number from the paper's.
    pub deviation: Option<f64>,
    /// Verdict of the check in the second run, with the mechanisms switched off.
    pub holds: CheckVerdict,
}

impl Check {
    /// Creates the comparison of a paper's statement with our result. `holds` is the verdict.
    pub fn new(
        id: &str,
        kind: CheckKind,
        (paper, ours): (Quantity, Quantity),
        holds: impl Into<CheckVerdict>,
    ) -> Check {
        let deviation = deviation(&paper.numbers, &ours.numbers);
        let (id, holds) = (id.to_owned(), holds.into());
        Check { id, kind, paper, ours, deviation, holds, note: String::new(), without: None }
    }

    /// Creates a quantitative check, which holds if every number is within `tolerance` (a fraction)
    /// of the paper's.
    pub fn within(id: &str, paper: Quantity, ours: Quantity, tolerance: f64) -> Check {
        let off = deviation(&paper.numbers, &ours.numbers);
        let holds = off.is_some_and(|off| off.abs() <= tolerance);
        Check::new(id, CheckKind::Quantitative, (paper, ours), holds)
    }

    /// Creates a check for which we have no result yet. The verdict is [`CheckVerdict::NotYet`].
    pub fn not_yet(id: &str, kind: CheckKind, paper: Quantity) -> Check {
        Check::new(id, kind, (paper, Quantity::default()), CheckVerdict::NotYet)
    }

    pub fn with_note(self, note: impl Into<String>) -> Check {
        Check { note: note.into(), ..self }
    }
}

/// Returns the largest relative deviation of our numbers (ours / paper's - 1). `None` if the lists
/// are empty or differ in length, or if a number of the paper is 0.
pub fn deviation(paper: &[f64], ours: &[f64]) -> Option<f64> {
    if paper.len() != ours.len() || paper.contains(&0.0) {
        return None;
    }
    let off = paper.iter().zip(ours).map(|(paper, ours)| ours / paper - 1.0);
    off.filter(|off| off.is_finite()).max_by(|a, b| a.abs().total_cmp(&b.abs()))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    Plain,
    /// Counts or rates, shown with K, M and G (factors of 1,000).
    Count,
    /// Nanoseconds, shown as ns, us, ms or s.
    Nanoseconds,
    /// Fractions, shown as percent.
    Percent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Linear scale that starts at 0.
    Linear,
    /// Logarithmic scale with powers of ten.
    Log,
}

/// Source of the points of a plotted curve, which decides the style of the curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeriesKind {
    /// Points that we measured or simulated. Plots show a solid line.
    Ours,
    /// Points that a paper states, for comparison with our results. Plots show these points as
    /// hollow marks, joined by a dotted line.
    Paper,
    /// Simulated points for which no measurements exist. Plots show a dashed line, marked in the
    /// legend.
    Prediction,
    /// Points of a second run, with some mechanisms of the simulated machine or kernel switched
    /// off. Plots show a thin dashed line.
    Without,
}

/// A curve in a plot. Curves of the same name have the same colour in all plots of a figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    /// Name of the curve in the legend, such as `MQ` for a multi-queue block layer.
    pub name: String,
    pub kind: SeriesKind,
    /// Points (x, y), in order of x.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// Creates a curve from points that we measured or simulated.
    pub fn ours(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.into(), kind: SeriesKind::Ours, points }
    }

    /// Creates a curve from points that a paper states.
    pub fn theirs(name: impl Into<String>, points: impl Into<Vec<(f64, f64)>>) -> Series {
        Series { name: name.into(), kind: SeriesKind::Paper, points: points.into() }
    }

    /// Returns the curve's name and kind, for legends and tables.
    pub fn label(&self) -> String {
        match self.kind {
            SeriesKind::Ours => self.name.clone(),
            SeriesKind::Paper => format!("{}, paper", self.name),
            SeriesKind::Prediction => format!("{}, prediction", self.name),
            SeriesKind::Without => format!("{}, without", self.name),
        }
    }
}

/// A vertical line across a plot, such as at the first core of a socket.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mark {
    pub x: f64,
    pub label: String,
}

/// A plot: its axes, lines and marks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Panel {
    /// Title that distinguishes the panel from the figure's other panels, such as a machine's name.
    pub title: String,
    /// Label of the x axis, such as `cores`.
    pub x_label: String,
    /// Label of the y axis without the prefix of its unit, such as `IOPS`.
    pub y_label: String,
    pub y_unit: Unit,
    pub y_scale: Scale,
    pub series: Vec<Series>,
    /// Vertical lines across the plot; may be empty.
    pub marks: Vec<Mark>,
    /// Counts of a heat map, drawn instead of lines. Only the HTML file shows heat maps.
    #[serde(skip)]
    pub heat: Option<HeatCells>,
}

impl Panel {
    /// Creates a plot with linear axes and no marks.
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
            heat: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// Name of the figure, such as `fig4`; letters, digits and dashes.
    pub id: String,
    pub title: String,
    pub caption: String,
    pub panels: Vec<Panel>,
}

impl Figure {
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

/// A table from a paper, or of our results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DataTable {
    /// Name of the table, such as `table2`; letters, digits and dashes.
    pub id: String,
    pub title: String,
    pub caption: String,
    pub head: Vec<String>,
    /// Rows of cells. Each row is as long as the head.
    pub rows: Vec<Vec<String>>,
}

impl DataTable {
    /// Creates a table. Each row must have one cell for each column in `head`.
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

/// All results of an experiment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Page {
    pub title: String,
    /// Paragraphs of the introduction.
    pub intro: Vec<String>,
    /// Warnings for the reader, for example about parts that were left out; may be empty.
    pub remarks: Vec<String>,
    /// Facts as names and values, such as the seed and the command that creates the page again.
    pub facts: Vec<(String, String)>,
    #[serde(skip)]
    pub against: ReferenceKind,
    /// Comparisons of the paper's statements with our results, in the order of `papers/NAME.toml`.
    pub checks: Vec<Check>,
    pub figures: Vec<Figure>,
    pub tables: Vec<DataTable>,
    pub machines: Vec<MachineTable>,
}

/// Kind of statements that a result page checks: statements of a paper, or claims about millrace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReferenceKind {
    #[default]
    Paper,
    /// A claim about millrace itself, instead of a statement of a paper.
    Promise,
}

impl ReferenceKind {
    fn heads(self) -> [&'static str; 2] {
        match self {
            ReferenceKind::Paper => ["paper", "ours"],
            ReferenceKind::Promise => ["expected", "found"],
        }
    }
}

/// Number of checks with each verdict. Checks of inputs are counted separately.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckTally {
    pub hold: usize,
    pub fail: usize,
    pub missing: usize,
    pub inputs: usize,
}

impl Page {
    /// Counts the verdicts.
    pub fn tally(&self) -> CheckTally {
        let mut tally = CheckTally::default();
        for check in &self.checks {
            let count = match (check.kind, check.holds) {
                (CheckKind::Input, _) => &mut tally.inputs,
                (_, CheckVerdict::Yes) => &mut tally.hold,
                (_, CheckVerdict::No) => &mut tally.fail,
                (_, CheckVerdict::NotYet) => &mut tally.missing,
            };
            *count += 1;
        }
        tally
    }

    /// Renders one self-contained HTML file.
    pub fn html(&self) -> String {
        html::page(self)
    }

    /// Renders tables for a terminal, with a row for each x and a column for each line, then the
    /// checks.
    pub fn text(&self) -> String {
        text::page(self)
    }

    /// Renders JSON: `{"checks": [...], "figures": [...], ...}`, with points as pairs of x and y.
    pub fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        text.expect("plain data with string keys must serialize to JSON")
    }
}

#[cfg(test)]
mod tests;
