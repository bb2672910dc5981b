//! Renders one panel as inline SVG.
//!
//! Colours are CSS classes that the page's style sheet defines for light, dark and print; points
//! differ in shape, too, so that nothing depends on colour alone. Each point has a title that
//! browsers show under the pointer. Called by `html.rs`. Every text goes through `escape`.

use super::escape::escape;
use super::scale::{Axis, short};
use super::{Mark, Panel, Scale, Series, SeriesKind, Unit};

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 40.0;
const COLOURS: usize = 8;
const MANY_POINTS: usize = 24;

/// Returns the names of a figure's series in order of first use, which decides their colours.
pub(super) fn names<'a>(panels: impl Iterator<Item = &'a Panel>) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for series in panels.flat_map(|panel| &panel.series) {
        if !names.contains(&series.name.as_str()) {
            names.push(&series.name);
        }
    }
    names
}

fn colour(names: &[&str], name: &str) -> usize {
    names.iter().position(|known| *known == name).unwrap_or(0) % COLOURS
}

pub(super) fn axes(panel: &Panel, xs: &[f64], ys: &[f64]) -> (Axis, Axis) {
    let (xs, ys) = (xs.iter().copied(), ys.iter().copied());
    let x = Axis::new(xs, Scale::Linear, 8.0, (LEFT, WIDTH - RIGHT));
    (x, Axis::new(ys, panel.y_scale, 5.0, (HEIGHT - BOTTOM, TOP)))
}

pub(super) fn panel(panel: &Panel, names: &[&str]) -> String {
    let label = escape(&format!("{}: {} over {}", panel.title, panel.y_label, panel.x_label));
    let mut svg = format!(
        "<svg class=\"plot\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\">"
    );
    match &panel.heat {
        Some(heat) => heat.draw(&mut svg, panel),
        None => lines(&mut svg, panel, names),
    }
    svg.push_str("</svg>");
    svg
}

fn lines(svg: &mut String, panel: &Panel, names: &[&str]) {
    let points = || panel.series.iter().flat_map(|series| &series.points);
    let marks = panel.marks.iter().map(|mark| mark.x);
    let xs: Vec<f64> = points().map(|(x, _)| *x).chain(marks).collect();
    let ys: Vec<f64> = points().map(|(_, y)| *y).collect();
    let (x, y) = axes(panel, &xs, &ys);
    let x = x.ending_at(xs.iter().copied()).counting(xs.iter().copied());
    grid(svg, panel, &x, &y);
    panel.marks.iter().for_each(|item| mark(svg, item, &x));
    for series in &panel.series {
        line(svg, (panel, series), colour(names, &series.name), (&x, &y));
    }
}

/// Appends formatted text to a string. Writing to a string cannot fail.
macro_rules! put {
    ($svg:expr, $($piece:tt)*) => { $svg.push_str(&format!($($piece)*)) };
}

pub(super) fn grid(svg: &mut String, panel: &Panel, x: &Axis, y: &Axis) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for (tick, at) in y.ticks().into_iter().filter_map(|tick| Some((tick, y.at(tick)?))) {
        put!(svg, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/>");
        let text = short(tick, panel.y_unit);
        put!(svg, "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" ", LEFT - 6.0, at + 4.0);
        put!(svg, "text-anchor=\"end\">{text}</text>");
    }
    for (tick, at) in x.ticks().into_iter().filter_map(|tick| Some((tick, x.at(tick)?))) {
        put!(svg, "<path class=\"axis\" d=\"M{at:.1} {bottom}v4\"/>");
        let text = short(tick, Unit::Plain);
        put!(svg, "<text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" ", bottom + 17.0);
        put!(svg, "text-anchor=\"middle\">{text}</text>");
    }
    put!(svg, "<path class=\"axis\" d=\"M{LEFT} {bottom}H{right}\"/>");
    put!(svg, "<text class=\"name\" x=\"4\" y=\"14\">{}</text>", escape(&panel.y_label));
    put!(svg, "<text class=\"name\" x=\"{right}\" y=\"{:.1}\" ", HEIGHT - 6.0);
    put!(svg, "text-anchor=\"end\">{}</text>", escape(&panel.x_label));
}

fn mark(svg: &mut String, mark: &Mark, x: &Axis) {
    let Some(at) = x.at(mark.x) else { return };
    put!(svg, "<path class=\"mark\" d=\"M{at:.1} {TOP}V{:.1}\"/>", HEIGHT - BOTTOM);
    put!(svg, "<text class=\"marked\" x=\"{at:.1}\" y=\"{:.1}\" ", TOP - 4.0);
    put!(svg, "text-anchor=\"middle\">{}</text>", escape(&mark.label));
}

fn line(
    svg: &mut String,
    (panel, series): (&Panel, &Series),
    colour: usize,
    (x, y): (&Axis, &Axis),
) {
    let place = |point: &(f64, f64)| Some((*point, (x.at(point.0)?, y.at(point.1)?)));
    let places: Vec<_> = series.points.iter().filter_map(place).collect();
    put!(svg, "<g class=\"s{colour} {}\"><path class=\"line\" d=\"", class(series.kind));
    for (number, (_, (at_x, at_y))) in places.iter().enumerate() {
        let letter = if number == 0 { 'M' } else { 'L' };
        put!(svg, "{letter}{at_x:.1} {at_y:.1}");
    }
    svg.push_str("\"/>");
    let size = if places.len() > MANY_POINTS { 2.2 } else { 3.2 };
    for ((value_x, value_y), at) in places {
        put!(svg, "<path class=\"dot\" d=\"{}\"><title>", shape(colour, at, size));
        let values = (short(value_x, Unit::Plain), short(value_y, panel.y_unit));
        let title = format!(
            "{}: {} {}, {} {}",
            series.label(),
            values.0,
            panel.x_label,
            values.1,
            panel.y_label
        );
        put!(svg, "{}</title></path>", escape(&title));
    }
    svg.push_str("</g>");
}

fn class(kind: SeriesKind) -> &'static str {
    match kind {
        SeriesKind::Ours => "ours",
        SeriesKind::Paper => "paper",
        SeriesKind::Prediction => "prediction",
        SeriesKind::Without => "without",
    }
}

fn shape(colour: usize, (x, y): (f64, f64), size: f64) -> String {
    let (left, top, wide) = (x - size, y - size, 2.0 * size);
    match colour % 4 {
        0 => {
            format!("M{left:.1} {y:.1}a{size} {size} 0 1 0 {wide} 0a{size} {size} 0 1 0 -{wide} 0")
        }
        1 => format!("M{left:.1} {top:.1}h{wide}v{wide}h-{wide}z"),
        2 => format!("M{x:.1} {top:.1}l{size} {wide}h-{wide}z"),
        _ => format!("M{x:.1} {top:.1}l{size} {size}l-{size} {size}l-{size} -{size}z"),
    }
}

pub(super) fn legend(panels: &[Panel], names: &[&str]) -> String {
    let mut html = String::from("<ul class=\"legend\">");
    let mut seen: Vec<String> = Vec::new();
    for series in panels.iter().flat_map(|panel| &panel.series) {
        let label = series.label();
        if seen.contains(&label) {
            continue;
        }
        let number = colour(names, &series.name);
        put!(html, "<li><svg viewBox=\"0 0 34 12\" aria-hidden=\"true\">");
        put!(html, "<g class=\"s{number} {}\">", class(series.kind));
        put!(html, "<path class=\"line\" d=\"M1 6H33\"/><path class=\"dot\" ");
        let dot = shape(number, (17.0, 6.0), 3.2);
        put!(html, "d=\"{dot}\"/></g></svg>{}</li>", escape(&label));
        seen.push(label);
    }
    html.push_str("</ul>");
    html
}
