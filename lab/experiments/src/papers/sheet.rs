//! `Sheet`: the content of `papers/NAME.toml`, from which a paper's result page is made.
//!
//! The file lists the simulations to run, formulas for figures and tables, and the paper's own
//! numbers. Formulas use metrics of the simulations. A type that implements `Point` turns settings
//! into a simulation. Texts in the file are templates, which `formula` fills in. Settings with
//! names that begin with an underscore are only for templates. The function `papers::repeat` fills
//! a paper's page from its sheet.

use std::collections::BTreeMap;

use millrace_drives::Words;
use serde::Deserialize;
use toml::{Table, Value};

use super::formula::{Formula, Names, Texts, fill, with};
use super::inputs::Given;
use super::points::{Point, Results};
use crate::page::{
    Check, CheckKind, DataTable, Figure, MachineTable, Mark, Page, Panel, Quantity, ReferenceKind,
    Scale, Series, SeriesKind, Unit,
};

/// Relative deviation from the paper that quantitative checks tolerate.
pub(crate) const TOLERANCE: f64 = 0.25;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Sheet {
    pub(super) title: String,
    pub(super) intro: Vec<String>,
    #[serde(default)]
    against: ReferenceKind,
    /// Name of a setting that selects lists in `values`. If this setting has the value V, the list
    /// `NAME-V` replaces the list `NAME`. If there is no list `NAME-V`, the list `NAME` is used.
    #[serde(default)]
    by: String,
    #[serde(default)]
    texts: Texts,
    /// Lists of settings, by name. Each element of the list NAME is a value for the setting NAME,
    /// or a table with the values of several settings.
    #[serde(default)]
    values: BTreeMap<String, Vec<Value>>,
    /// Lists of settings, by name, that are built from other lists. Each inner `Vec` names some
    /// lists (`Axis`). Every combination of one element from each of these lists is added.
    #[serde(default)]
    axes: BTreeMap<String, Vec<Vec<Axis>>>,
    /// For each setting, names for some of its values. If the TOML file uses such a name, the
    /// `Point` gets the value instead.
    #[serde(default)]
    named: BTreeMap<String, Table>,
    #[serde(default)]
    formulas: BTreeMap<String, Formula>,
    #[serde(rename = "part")]
    parts: Vec<Part>,
    #[serde(rename = "figure", default)]
    figures: Vec<FigureSpec>,
    #[serde(rename = "table", default)]
    tables: Vec<TableSpec>,
    #[serde(rename = "check")]
    checks: Vec<CheckSpec>,
    #[serde(default)]
    given: Vec<Given>,
}

/// A list of settings: the name of a list in `values` or `axes`, or the settings themselves.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Axis {
    Name(String),
    One(Table),
    Several(Vec<Table>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    name: String,
    #[serde(default)]
    points: Vec<Vec<Axis>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FigureSpec {
    part: String,
    /// Lists of settings. The page gets one figure for each combination of their elements.
    #[serde(default)]
    each: Vec<Axis>,
    id: String,
    title: String,
    caption: String,
    #[serde(rename = "panel")]
    panels: Vec<PanelSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PanelSpec {
    #[serde(default)]
    each: Vec<Axis>,
    title: String,
    /// Name of the setting that varies along the x axis, and the label of the axis.
    x: (String, String),
    y: (String, Unit, Scale),
    #[serde(rename = "line")]
    lines: Vec<LineSpec>,
    #[serde(default)]
    marks: Vec<(f64, String)>,
    /// Formula for the x positions of vertical lines, such as the core numbers at which the second
    /// and further sockets begin. The vertical lines are labelled 2, 3 and so on.
    begins: Option<Formula>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LineSpec {
    #[serde(default)]
    each: Vec<Axis>,
    #[serde(default)]
    only: Table,
    name: String,
    y: Option<Formula>,
    /// Pairs of formulas, for x and for y, that give points of the plotted line. The formula in the
    /// field `y` gives further points, at all values of the setting `PanelSpec::x`.
    #[serde(default)]
    points: Vec<(Formula, Formula)>,
    #[serde(default = "ours")]
    kind: SeriesKind,
}

fn ours() -> SeriesKind {
    SeriesKind::Ours
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TableSpec {
    part: String,
    #[serde(default)]
    each: Vec<Axis>,
    id: String,
    title: String,
    caption: String,
    head: Vec<String>,
    #[serde(rename = "row")]
    rows: Vec<RowSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RowSpec {
    #[serde(default)]
    each: Vec<Axis>,
    #[serde(default)]
    cells: Vec<String>,
    /// Name of the rows if the paper's module computes them with `Point::rows`. Empty if `cells`
    /// has the text of the row.
    #[serde(default)]
    from: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckSpec {
    id: String,
    kind: CheckKind,
    paper: String,
    #[serde(default)]
    numbers: Vec<f64>,
    #[serde(default)]
    at: Table,
    #[serde(default)]
    best: BTreeMap<String, BestSpec>,
    ours: Option<Formula>,
    /// Template for our result in words. Without a template, the numbers are shown.
    text: Option<String>,
    /// Formula, nonzero if our result agrees with the paper. `None` applies `TOLERANCE`.
    holds: Option<Formula>,
    #[serde(default)]
    note: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BestSpec {
    of: Formula,
    over: Vec<Axis>,
    by: Option<Formula>,
    text: String,
}

impl<'de> Deserialize<'de> for Formula {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Formula, D::Error> {
        Ok(match Value::deserialize(deserializer)? {
            Value::Integer(number) => Formula::Number(number as f64),
            Value::Float(number) => Formula::Number(number),
            Value::String(text) => Formula::parse(&text),
            other => {
                return Err(serde::de::Error::custom(format!(
                    "{other}: must be a number or a formula"
                )));
            }
        })
    }
}

struct Evidence<'a, P: Point> {
    sheet: &'a Sheet,
    results: &'a Results<P>,
    numbers: BTreeMap<String, Formula>,
}

impl<P: Point> Names for Evidence<'_, P> {
    fn formula(&self, name: &str) -> Option<&Formula> {
        self.numbers.get(name).or_else(|| self.sheet.formulas.get(name))
    }

    fn values(&self, name: &str, settings: &Table) -> Vec<Table> {
        self.sheet.values(name, settings)
    }

    fn metric(&self, name: &str, settings: &Table) -> Option<Vec<f64>> {
        P::metric(self.results, &self.sheet.point(settings), name)
    }
}

pub(crate) fn word<'de, D: serde::Deserializer<'de>, T: Words>(
    deserializer: D,
) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    T::from_word(&text)
        .ok_or_else(|| serde::de::Error::custom(format!("{text}: not one of the setting's values")))
}

pub(crate) fn parsed<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: std::str::FromStr<Err = String>,
{
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

impl Sheet {
    fn point<P: Point>(&self, settings: &Table) -> P {
        let value = |key: &str, value: &Value| {
            let named = self.named.get(key).zip(value.as_str());
            named.and_then(|(known, name)| known.get(name)).unwrap_or(value).clone()
        };
        let known = settings.iter().filter(|(key, _)| !key.starts_with('_'));
        let known: Table = known.map(|(key, of)| (key.clone(), value(key, of))).collect();
        let made = P::of_settings(known.clone());
        made.unwrap_or_else(|error| panic!("{known}: {error}"))
    }

    pub(crate) fn parse(text: &str) -> Sheet {
        toml::from_str(text).unwrap_or_else(|error| panic!("a paper's file is invalid: {error}"))
    }

    pub(crate) fn given(&self) -> Vec<MachineTable> {
        self.given.iter().map(Given::table).collect()
    }

    pub(crate) fn parts(&self) -> Vec<&str> {
        self.parts.iter().map(|part| part.name.as_str()).collect()
    }

    pub(crate) fn points<P: Point>(&self, part: &str) -> Vec<P> {
        let of = self.parts.iter().filter(|known| known.name == part);
        let axes = of.flat_map(|part| &part.points);
        axes.flat_map(|axes| self.expand(axes)).map(|settings| self.point(&settings)).collect()
    }

    fn values(&self, name: &str, settings: &Table) -> Vec<Table> {
        if let Some(products) = self.axes.get(name) {
            return products.iter().flat_map(|axes| self.expand(axes)).collect();
        }
        let own = settings.get(&self.by).and_then(Value::as_str);
        let own = own.and_then(|value| self.values.get(&format!("{name}-{value}")));
        let list = own.or_else(|| self.values.get(name));
        let list =
            list.unwrap_or_else(|| panic!("{name}: the file has no list of values of this name"));
        let one = |value: &Value| match value {
            Value::Table(settings) => settings.clone(),
            value => Table::from_iter([(name.to_owned(), value.clone())]),
        };
        list.iter().map(one).collect()
    }

    fn expand(&self, axes: &[Axis]) -> Vec<Table> {
        self.expand_from(&Table::new(), axes)
    }

    fn expand_from(&self, settings: &Table, axes: &[Axis]) -> Vec<Table> {
        axes.iter().fold(vec![settings.clone()], |all, axis| {
            let of = |one: &Table| match axis {
                Axis::Name(name) => self.values(name, one),
                Axis::One(settings) => vec![settings.clone()],
                Axis::Several(several) => several.clone(),
            };
            all.iter().flat_map(|one| of(one).into_iter().map(|other| with(one, &other))).collect()
        })
    }

    pub(crate) fn fill<P: Point>(
        &self,
        results: &Results<P>,
        (paper, parts): (&str, &[&str]),
        page: Page,
    ) -> Page {
        let evidence = Evidence { sheet: self, results, numbers: BTreeMap::new() };
        Page {
            against: self.against,
            checks: self.checks.iter().map(|check| evidence.check(check, paper)).collect(),
            figures: parts.iter().flat_map(|part| evidence.figures(part)).collect(),
            tables: parts.iter().flat_map(|part| evidence.tables(part)).collect(),
            ..page
        }
    }
}

impl<P: Point> Evidence<'_, P> {
    fn value(&self, formula: &Formula, settings: &Table) -> Option<f64> {
        formula.value(self, settings).map(|list| list[0])
    }

    fn text(&self, template: &str, settings: &Table) -> String {
        fill(template, (self, settings), &self.sheet.texts).unwrap_or_default()
    }

    fn figures(&self, part: &str) -> Vec<Figure> {
        let of_spec = |spec: &FigureSpec| {
            let settings = self.in_part(&spec.each, &spec.part, part);
            settings.iter().map(|settings| self.figure(spec, settings)).collect::<Vec<_>>()
        };
        self.sheet.figures.iter().flat_map(of_spec).collect()
    }

    fn in_part(&self, each: &[Axis], name: &str, part: &str) -> Vec<Table> {
        let mut settings = self.sheet.expand(each);
        settings.retain(|settings| self.text(name, settings) == part);
        settings
    }

    fn figure(&self, spec: &FigureSpec, settings: &Table) -> Figure {
        let mut panels = Vec::new();
        for panel in &spec.panels {
            let each = self.sheet.expand_from(settings, &panel.each);
            panels.extend(each.iter().map(|settings| self.panel(panel, settings)));
        }
        let of = |template: &str| self.text(template, settings);
        Figure::new(&of(&spec.id), of(&spec.title), &of(&spec.caption), panels)
    }

    fn panel(&self, spec: &PanelSpec, settings: &Table) -> Panel {
        let is_here = |line: &&LineSpec| line.only.iter().all(|(k, v)| settings.get(k) == Some(v));
        let lines = spec.lines.iter().filter(is_here).flat_map(|line| {
            let each = self.sheet.expand_from(settings, &line.each).into_iter();
            each.map(|settings| self.line(line, (&spec.x.0, &settings)))
        });
        let (label, unit, scale) = &spec.y;
        let mark = |(x, label): &(f64, String)| Mark { x: *x, label: label.clone() };
        let begins = spec.begins.as_ref().and_then(|begins| begins.value(self, settings));
        let begin = |(x, number): (f64, u32)| Mark { x, label: number.to_string() };
        let begins = begins.unwrap_or_default().into_iter().zip(2..).map(begin);
        let title = self.text(&spec.title, settings);
        let panel = Panel::new(title, &spec.x.1, (label, *unit), lines.collect());
        Panel {
            y_scale: *scale,
            marks: spec.marks.iter().map(mark).chain(begins).collect(),
            ..panel
        }
    }

    fn line(&self, spec: &LineSpec, (x, settings): (&str, &Table)) -> Series {
        let name = self.text(&spec.name, settings);
        let mut points = Vec::new();
        for (x, y) in &spec.points {
            let of = |formula: &Formula| formula.value(self, settings).unwrap_or_default();
            points.extend(of(x).into_iter().zip(of(y)));
        }
        if let Some(y) = &spec.y {
            for (number, one) in self.sheet.values(x, settings).iter().enumerate() {
                // The x coordinate of a point is the value of the setting on the x axis. If the
                // value is not an integer, the x coordinate is the value's position in the list of
                // values, counted from 1.
                let x = one.get(x).and_then(Value::as_integer).unwrap_or(number as i64 + 1);
                points.extend(self.value(y, &with(settings, one)).map(|y| (x as f64, y)));
            }
        }
        Series { name, kind: spec.kind, points }
    }

    fn tables(&self, part: &str) -> Vec<DataTable> {
        let of_spec = |spec: &TableSpec| {
            let settings = self.in_part(&spec.each, &spec.part, part);
            settings.iter().map(|settings| self.table(spec, settings)).collect::<Vec<_>>()
        };
        self.sheet.tables.iter().flat_map(of_spec).collect()
    }

    fn table(&self, spec: &TableSpec, settings: &Table) -> DataTable {
        let mut rows = Vec::new();
        for row in &spec.rows {
            let each = self.sheet.expand_from(settings, &row.each);
            if !row.from.is_empty() {
                let made = |settings| P::rows(self.results, &self.sheet.point(settings), &row.from);
                rows.extend(each.iter().flat_map(made));
                continue;
            }
            let cells = |settings: Table| {
                row.cells.iter().map(|cell| self.text(cell, &settings)).collect::<Vec<_>>()
            };
            rows.extend(each.into_iter().map(cells));
        }
        let of = |template: &str| self.text(template, settings);
        DataTable::new(
            (&of(&spec.id), of(&spec.title)),
            &of(&spec.caption),
            spec.head.clone(),
            rows,
        )
    }

    fn check(&self, spec: &CheckSpec, paper: &str) -> Check {
        let theirs = Quantity::new(spec.paper.as_str(), spec.numbers.clone());
        self.judged(spec, &theirs).unwrap_or_else(|| {
            let missing = format!(
                "the part with this check was not run; millrace-lab paper {paper} runs all parts"
            );
            Check::not_yet(&spec.id, spec.kind, theirs).with_note(missing)
        })
    }

    /// Returns the evaluated check. `None` if the check has no formula, or if some of its points
    /// were not run.
    fn judged(&self, spec: &CheckSpec, theirs: &Quantity) -> Option<Check> {
        if spec.ours.is_none() && spec.text.is_none() {
            return None;
        }
        let (mut numbers, mut texts) = (BTreeMap::new(), self.sheet.texts.clone());
        for (name, best) in &spec.best {
            let (value, text) = self.best(best, &spec.at)?;
            numbers.insert(name.clone(), Formula::Number(value));
            texts.insert(name.clone(), text);
        }
        let here = Evidence { numbers, ..*self };
        let values = match &spec.ours {
            Some(formula) => formula.value(&here, &spec.at)?,
            None => Vec::new(),
        };
        let filled = |template: &str| fill(template, (&here, &spec.at), &texts);
        let text = match &spec.text {
            Some(template) => filled(template)?,
            None => values.iter().map(|one| format!("{one:.2}")).collect::<Vec<_>>().join(", "),
        };
        let ours = Quantity::new(text, values);
        let check = match &spec.holds {
            None => Check::within(&spec.id, theirs.clone(), ours, TOLERANCE),
            Some(formula) => {
                let holds = formula.value(&here, &spec.at)?.iter().all(|one| *one != 0.0);
                Check::new(&spec.id, spec.kind, (theirs.clone(), ours), holds)
            }
        };
        Some(check.with_note(filled(&spec.note)?))
    }

    fn best(&self, spec: &BestSpec, at: &Table) -> Option<(f64, String)> {
        let mut best: Option<(f64, f64, Table)> = None;
        for settings in self.sheet.expand_from(at, &spec.over) {
            let value = self.value(&spec.of, &settings)?;
            let here = Evidence {
                numbers: BTreeMap::from([("value".to_owned(), Formula::Number(value))]),
                ..*self
            };
            let by = spec.by.as_ref().map_or(Some(value), |by| here.value(by, &settings))?;
            if best.as_ref().is_none_or(|(most, ..)| by > *most) {
                best = Some((by, value, settings));
            }
        }
        let (_, value, settings) = best?;
        let numbers = BTreeMap::from([("value".to_owned(), Formula::Number(value))]);
        let here = Evidence { numbers, ..*self };
        let text = fill(&spec.text, (&here, &settings), &Texts::new())?;
        Some((value, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_caption_says_what_to_see_and_what_the_paper_has() {
        for text in [
            include_str!("../../papers/atc17.toml"),
            include_str!("../../papers/msst15.toml"),
            include_str!("../../papers/systor13.toml"),
        ] {
            for FigureSpec { id, caption, .. } in Sheet::parse(text).figures {
                assert!(caption.to_lowercase().contains("see "), "{id}: {caption}");
                let theirs = ["Hollow:", "Dotted:", "Vertical: the paper", "not given as numbers"];
                let is_told = theirs.iter().any(|word| caption.contains(word));
                assert!(is_told || caption.contains("no part of the paper"), "{id}: {caption}");
            }
        }
    }
}
