//! `Formula`: computes a number, or a list of numbers, from the simulations (points) that were run.
//!
//! A paper's file has formulas for the lines of plots, the cells of tables, and checks. `iops` is a
//! metric of the current point; `iops[mode=mq]` is the metric of the point with another setting. A
//! name from the file's `formulas` stands for that formula. `each(processes: iops)` is the list of
//! `iops` for all values that the file lists under `processes`. Operators work on lists element by
//! element; a comparison gives 1 or 0. If a formula needs a point that was not run, its value is
//! `None`. Only `sheet` calls this file. A mistake in a paper's file panics; a test parses all
//! files.

use std::collections::BTreeMap;

use toml::{Table, Value};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Formula {
    Number(f64),
    Name(String, Table),
    Call(String, Vec<Formula>),
    /// `each(NAMES: FORMULA)`: the formula's values for all combinations of the settings NAMES.
    Each(Vec<String>, Box<Formula>),
    Binary(&'static str, Box<Formula>, Box<Formula>),
}

pub(super) trait Names {
    fn formula(&self, name: &str) -> Option<&Formula>;
    fn values(&self, name: &str, settings: &Table) -> Vec<Table>;
    /// Returns a metric of the simulation with these settings; `None` if it was not run.
    fn metric(&self, name: &str, settings: &Table) -> Option<Vec<f64>>;
}

/// Operators by precedence. The first level binds least.
const LEVELS: [&[&str]; 5] =
    [&["or"], &["and"], &["<=", ">=", "<", ">", "="], &["+", "-"], &["*", "/"]];

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn takes(&mut self, symbol: &str) -> bool {
        self.rest = self.rest.trim_start();
        let Some(rest) = self.rest.strip_prefix(symbol) else { return false };
        let is_word = symbol.starts_with(|c: char| c.is_ascii_alphabetic());
        if is_word && rest.starts_with(is_of_name) {
            return false;
        }
        self.rest = rest;
        true
    }

    fn run(&mut self, of: fn(char) -> bool) -> &'a str {
        self.rest = self.rest.trim_start();
        let end = self.rest.find(|c| !of(c)).unwrap_or(self.rest.len());
        let (run, rest) = self.rest.split_at(end);
        self.rest = rest;
        run
    }

    fn level(&mut self, level: usize) -> Formula {
        let Some(operators) = LEVELS.get(level) else { return self.atom() };
        let mut left = self.level(level + 1);
        while let Some(operator) = operators.iter().find(|one| self.takes(one)) {
            left = Formula::Binary(operator, Box::new(left), Box::new(self.level(level + 1)));
        }
        left
    }

    fn atom(&mut self) -> Formula {
        if self.takes("(") {
            let inner = self.level(0);
            assert!(self.takes(")"), "a closing bracket is missing before '{}'", self.rest);
            return inner;
        }
        if self.takes("-") {
            let zero = Box::new(Formula::Number(0.0));
            return Formula::Binary("-", zero, Box::new(self.atom()));
        }
        let number = self.run(|c| c.is_ascii_digit() || c == '.');
        if !number.is_empty() {
            let power = self.rest.strip_prefix('e').map(|rest| {
                self.rest = rest;
                self.run(|c| c.is_ascii_digit() || c == '-')
            });
            let text = power.map_or(number.to_owned(), |power| format!("{number}e{power}"));
            return Formula::Number(text.parse().expect("the value must be a number"));
        }
        let name = self.run(is_of_name).to_owned();
        assert!(!name.is_empty(), "a formula must begin at '{}'", self.rest);
        if self.takes("[") {
            let (inside, rest) = self.rest.split_once(']').expect("settings must end with ]");
            self.rest = rest;
            return Formula::Name(name, settings(inside));
        }
        if !self.takes("(") {
            return Formula::Name(name, Table::new());
        }
        if name == "each" {
            let (names, rest) =
                self.rest.split_once(':').expect("write each as each(NAME: FORMULA)");
            self.rest = rest;
            let names = names.split(',').map(|name| name.trim().to_owned()).collect();
            let body = self.level(0);
            assert!(
                self.takes(")"),
                "the closing bracket of each(...) is missing before '{}'",
                self.rest
            );
            return Formula::Each(names, Box::new(body));
        }
        let mut arguments = vec![self.level(0)];
        while self.takes(",") {
            arguments.push(self.level(0));
        }
        assert!(self.takes(")"), "the closing bracket of {name} is missing before '{}'", self.rest);
        Formula::Call(name, arguments)
    }
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '.'
}

/// Parses settings such as `key=value,key=value`. Whole numbers become integers, `true` and `false`
/// become booleans, and all other values become strings.
fn settings(text: &str) -> Table {
    let one = |pair: &str| {
        let (key, value) = pair.split_once('=').expect("write settings as KEY=VALUE");
        let value = value.trim();
        let value = match (value.parse(), value.parse()) {
            (Ok(number), _) => Value::Integer(number),
            (_, Ok(flag)) => Value::Boolean(flag),
            _ => Value::String(value.to_owned()),
        };
        (key.trim().to_owned(), value)
    };
    text.split(',').map(one).collect()
}

pub(super) fn with(settings: &Table, others: &Table) -> Table {
    let mut all = settings.clone();
    all.extend(others.clone());
    all
}

impl Formula {
    pub(super) fn parse(text: &str) -> Formula {
        let mut parser = Parser { rest: text };
        let formula = parser.level(0);
        assert!(parser.rest.trim().is_empty(), "{text}: cannot parse '{}' at its end", parser.rest);
        formula
    }

    pub(super) fn value(&self, names: &dyn Names, settings: &Table) -> Option<Vec<f64>> {
        match self {
            Formula::Number(number) => Some(vec![*number]),
            Formula::Name(name, others) => {
                let settings = with(settings, others);
                if let Some(formula) = names.formula(name) {
                    return formula.value(names, &settings);
                }
                match settings.get(name) {
                    Some(Value::Integer(number)) => Some(vec![*number as f64]),
                    Some(Value::Float(number)) => Some(vec![*number]),
                    _ => names.metric(name, &settings),
                }
            }
            Formula::Each(over, body) => {
                let all = product(over.iter().map(|name| names.values(name, settings)));
                let each = all.iter().map(|one| body.value(names, &with(settings, one)));
                Some(each.collect::<Option<Vec<_>>>()?.concat())
            }
            Formula::Binary(operator, left, right) => {
                let (left, right) = (left.value(names, settings)?, right.value(names, settings)?);
                let len = if left.len() == 1 { right.len() } else { left.len() };
                let of = |list: &[f64], at: usize| list[if list.len() == 1 { 0 } else { at }];
                Some((0..len).map(|at| apply(operator, of(&left, at), of(&right, at))).collect())
            }
            Formula::Call(name, arguments) => {
                let lists = arguments.iter().map(|argument| argument.value(names, settings));
                Some(call(name, &lists.collect::<Option<Vec<_>>>()?.concat()))
            }
        }
    }
}

fn apply(operator: &str, left: f64, right: f64) -> f64 {
    match operator {
        "+" => left + right,
        "-" => left - right,
        "*" => left * right,
        "/" => left / right,
        "<" => f64::from(left < right),
        "<=" => f64::from(left <= right),
        ">" => f64::from(left > right),
        ">=" => f64::from(left >= right),
        "=" => f64::from(left == right),
        "and" => f64::from(left != 0.0 && right != 0.0),
        _ => f64::from(left != 0.0 || right != 0.0),
    }
}

/// Applies the function `name` of a formula to a list. The function `all` returns 1 if no number in
/// the list is 0. `steps` returns the differences of neighbouring numbers, and `ratios` their
/// quotients.
fn call(name: &str, list: &[f64]) -> Vec<f64> {
    let pairs = list.windows(2);
    match name {
        "list" => list.to_vec(),
        "abs" => list.iter().map(|one| one.abs()).collect(),
        "steps" => pairs.map(|pair| pair[1] - pair[0]).collect(),
        "ratios" => pairs.map(|pair| pair[1] / pair[0]).collect(),
        "max" => vec![list.iter().copied().fold(f64::NEG_INFINITY, f64::max)],
        "min" => vec![list.iter().copied().fold(f64::INFINITY, f64::min)],
        "sum" => vec![list.iter().sum()],
        "mean" => vec![list.iter().sum::<f64>() / list.len() as f64],
        "count" => vec![list.len() as f64],
        "first" => list[..1].to_vec(),
        "last" => list[list.len() - 1..].to_vec(),
        // Coefficient of determination of a straight line through points: 1 if all points lie on a
        // line. The list has first all x, then all y.
        "r2" => vec![straightness(list.split_at(list.len() / 2))],
        // The last number of the list is an index n, counted from 1. The result is the list's n-th
        // number.
        "nth" => vec![list[list[list.len() - 1] as usize - 1]],
        "all" => vec![f64::from(list.iter().all(|one| *one != 0.0))],
        _ => panic!("{name}: formulas have no function of this name"),
    }
}

fn straightness((xs, ys): (&[f64], &[f64])) -> f64 {
    let mean = |list: &[f64]| list.iter().sum::<f64>() / list.len() as f64;
    let (mx, my) = (mean(xs), mean(ys));
    let sum =
        |f: fn(f64, f64) -> f64| xs.iter().zip(ys).map(|(x, y)| f(x - mx, y - my)).sum::<f64>();
    let (xy, xx, yy) = (sum(|x, y| x * y), sum(|x, _| x * x), sum(|_, y| y * y));
    if xx * yy == 0.0 { 0.0 } else { xy * xy / (xx * yy) }
}

pub(super) fn product(axes: impl Iterator<Item = Vec<Table>>) -> Vec<Table> {
    axes.fold(vec![Table::new()], |all, axis| {
        all.iter().flat_map(|one| axis.iter().map(|other| with(one, other))).collect()
    })
}

pub(super) type Texts = BTreeMap<String, String>;

/// Fills a template. `{FORMULA:.2}` shows a list of numbers with two decimals each, `{FORMULA:+.2}`
/// also with signs, `{FORMULA:.1%}` in percent. `{FORMULA ? one text : another}` is the first text
/// if no number of the formula is 0, otherwise the second. `{name}` is the value of a setting or of
/// a name in `texts`.
pub(super) fn fill(
    template: &str,
    (names, settings): (&dyn Names, &Table),
    texts: &Texts,
) -> Option<String> {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, inside)) = rest.split_once('{') {
        let (inside, after) = inside.split_once('}').expect("a template's brace must be closed");
        text += before;
        text += &match (texts.get(inside), settings.get(inside)) {
            (Some(known), _) => known.clone(),
            (_, Some(Value::String(word))) => word.clone(),
            _ => part(inside, (names, settings))?,
        };
        rest = after;
    }
    Some(text + rest)
}

fn part(inside: &str, (names, settings): (&dyn Names, &Table)) -> Option<String> {
    let value = |formula: &str| Formula::parse(formula).value(names, settings);
    if let Some((condition, texts)) = inside.split_once(" ? ") {
        let (yes, no) =
            texts.split_once(" : ").expect("a choice in a template must have two texts");
        let holds = value(condition)?.iter().all(|one| *one != 0.0);
        return Some(if holds { yes } else { no }.to_owned());
    }
    let (formula, format) = match inside.rsplit_once(':') {
        Some((formula, format)) if format.starts_with(['.', '+']) => (formula, Some(format)),
        _ => (inside, None),
    };
    let Some(format) = format else {
        return Some(value(formula)?.iter().map(f64::to_string).collect::<Vec<_>>().join(", "));
    };
    let (format, percent) = format.strip_suffix('%').map_or((format, false), |rest| (rest, true));
    let (format, signed) = format.strip_prefix('+').map_or((format, false), |rest| (rest, true));
    let decimals: usize = format[1..].parse().expect("the format must give the number of decimals");
    let one = |number: f64| {
        let number = if percent { number * 100.0 } else { number };
        let text = match signed {
            true => format!("{number:+.decimals$}"),
            false => format!("{number:.decimals$}"),
        };
        if percent { text + " %" } else { text }
    };
    Some(value(formula)?.into_iter().map(one).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Points of x 1 to 3 that measured x squared; one of x 4 was not run.
    struct Squares(Formula);

    impl Names for Squares {
        fn formula(&self, name: &str) -> Option<&Formula> {
            (name == "half").then_some(&self.0)
        }

        fn values(&self, name: &str, _settings: &Table) -> Vec<Table> {
            (1..=3).map(|x| Table::from_iter([(name.to_owned(), Value::Integer(x))])).collect()
        }

        fn metric(&self, name: &str, settings: &Table) -> Option<Vec<f64>> {
            assert_eq!(name, "square");
            let x = settings["x"].as_integer().expect("the value must be a number") as f64;
            (x < 4.0).then(|| vec![x * x])
        }
    }

    fn value(text: &str) -> Option<Vec<f64>> {
        let settings = Table::from_iter([("x".to_owned(), Value::Integer(2))]);
        Formula::parse(text).value(&Squares(Formula::parse("square / 2")), &settings)
    }

    #[test]
    fn operators_bind_as_usual_and_names_are_of_settings_at_hand() {
        for (text, expected) in [
            ("1 + 2 * 3 - 4 / 2", vec![5.0]),
            ("(1 + 2) * -3", vec![-9.0]),
            ("square + x", vec![6.0]),
            ("half[x=3]", vec![4.5]),
            ("each(x: square)", vec![1.0, 4.0, 9.0]),
            ("steps(each(x: square)) > 3", vec![0.0, 1.0]),
            ("each(x: square) * 2e-1 / 0.2", vec![1.0, 4.0, 9.0]),
            ("max(1, each(x: half)) and 1 <= 0 or 1", vec![1.0]),
            ("r2(1, 2, 3, 4, 7, 10) - 1", vec![0.0]),
            ("r2(1, 2, 3, 1, 5, 1) < 0.1", vec![1.0]),
            ("nth(list(5, 6), 2)", vec![6.0]),
            ("all(ratios(each(x: square)) >= 2.25)", vec![1.0]),
        ] {
            assert_eq!(value(text), Some(expected), "{text}");
        }
        assert_eq!(value("each(x: square) + square[x=4]"), None);
    }

    #[test]
    fn templates_have_decimals_signs_percents_and_choices() {
        let settings = Table::from_iter([
            ("x".to_owned(), Value::Integer(2)),
            ("mode".to_owned(), Value::String("mq".into())),
        ]);
        let names = Squares(Formula::Number(0.5));
        let filled = |text: &str| fill(text, (&names, &settings), &Texts::new());
        assert_eq!(filled("{mode} {x}: {square:.1} {half:+.2}"), Some("mq 2: 4.0 +0.50".into()));
        assert_eq!(filled("{half:.1%}"), Some("50.0 %".into()));
        assert_eq!(filled("{square > 3 ? yes : no}"), Some("yes".into()));
        assert_eq!(filled("{each(x: square)}"), Some("1, 4, 9".into()));
        assert_eq!(filled("{square[x=4]}"), None);
    }
}
