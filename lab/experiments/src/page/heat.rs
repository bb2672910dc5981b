//! Heat maps of a page: counts over time and another value, as inline SVG.
//!
//! Counts are shown in eight steps of one colour on a logarithmic scale, since a rare slow I/O
//! matters as much as the many fast ones. All cells of a step are one path, so a map stays small.
//! Called by `html.rs`. Every text goes through `escape`.

use serde::Serialize;

use super::escape::{anchor, escape};
use super::plot::{self, BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH};
use super::scale::Axis;
use super::{Panel, Scale, Unit};

/// Number of colour steps.
const STEPS: usize = 8;

/// Heat maps under one title.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeatMap {
    /// Name of the figure; letters, digits and dashes.
    pub id: String,
    /// Title of the figure.
    pub title: String,
    /// Caption that says what the maps show.
    pub caption: String,
    /// Heat maps of the figure.
    pub panels: Vec<HeatPanel>,
}

/// One heat map.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeatPanel {
    /// Title that distinguishes the map from its neighbours.
    pub title: String,
    /// Label of the x axis.
    pub x_label: String,
    /// Edges of the columns: one more than there are columns.
    pub x_edges: Vec<f64>,
    /// Label of the y axis.
    pub y_label: String,
    /// Unit of the y values.
    pub y_unit: Unit,
    /// Scale of the y axis.
    pub y_scale: Scale,
    /// Edges of the rows, ascending: one more than there are rows.
    pub y_edges: Vec<f64>,
    /// Counts, by column and row.
    pub columns: Vec<Vec<u64>>,
}

/// Renders a figure of heat maps.
pub(super) fn map(map: &HeatMap) -> String {
    let mut html = format!(
        "<section id=\"{}\" class=\"figure\">\n<h2>{}</h2>\n<p class=\"caption\">{}</p>\n",
        anchor(&map.id),
        escape(&map.title),
        escape(&map.caption)
    );
    let count = if map.panels.len() == 1 { " alone" } else { "" };
    html += &format!("<div class=\"panels{count}\">\n");
    for panel in &map.panels {
        let most = panel.columns.iter().flatten().copied().max().unwrap_or(0);
        html += &format!(
            "<figure>\n<figcaption>{}</figcaption>\n{}\n<p class=\"heat-key\">{} at most in a \
             cell</p>\n</figure>\n",
            escape(&panel.title),
            svg(panel, most),
            most
        );
    }
    html += "</div>\n</section>\n";
    html
}

fn svg(heat: &HeatPanel, most: u64) -> String {
    let (xs, ys) = (|| heat.x_edges.iter().copied(), || heat.y_edges.iter().copied());
    let x = Axis::new(xs(), Scale::Linear, 8.0, (LEFT, WIDTH - RIGHT)).ending_at(xs());
    let y = Axis::new(ys(), heat.y_scale, 5.0, (HEIGHT - BOTTOM, TOP));
    let label = format!("{}: {} over {}", heat.title, heat.y_label, heat.x_label);
    let mut svg = format!(
        "<svg class=\"plot\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\
         <g class=\"s0\">",
        escape(&label)
    );
    let mut paths = vec![String::new(); STEPS];
    for (column, edges) in heat.columns.iter().zip(heat.x_edges.windows(2)) {
        for (count, rows) in column.iter().zip(heat.y_edges.windows(2)) {
            let places = (x.at(edges[0]), x.at(edges[1]), y.at(rows[0]), y.at(rows[1]));
            if let ((Some(left), Some(right), Some(low), Some(high)), 1..) = (places, *count) {
                let (wide, tall) = ((right - left).max(0.5), (low - high).max(0.5));
                paths[step(*count, most)] +=
                    &format!("M{left:.1} {high:.1}h{wide:.1}v{tall:.1}h-{wide:.1}z");
            }
        }
    }
    for (step, path) in paths.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
        let opacity = 0.15 + 0.85 * step as f64 / (STEPS - 1) as f64;
        svg += &format!("<path class=\"heat\" fill-opacity=\"{opacity:.2}\" d=\"{path}\"/>");
    }
    svg.push_str("</g>");
    plot::grid(&mut svg, &frame(heat), &x, &y);
    svg.push_str("</svg>");
    svg
}

/// Creates a panel without lines, for drawing the axes.
fn frame(heat: &HeatPanel) -> Panel {
    Panel {
        title: heat.title.clone(),
        x_label: heat.x_label.clone(),
        y_label: heat.y_label.clone(),
        y_unit: heat.y_unit,
        y_scale: heat.y_scale,
        series: Vec::new(),
        marks: Vec::new(),
    }
}

/// Returns the colour step of a count, on a logarithmic scale.
fn step(count: u64, most: u64) -> usize {
    if most <= 1 {
        return STEPS - 1;
    }
    let share = (count as f64).ln() / (most as f64).ln();
    ((share * (STEPS - 1) as f64).round() as usize).min(STEPS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_only_cells_with_counts_are_drawn() {
        let panel = HeatPanel {
            title: "<a>".into(),
            x_label: "s".into(),
            x_edges: vec![0.0, 1.0, 2.0],
            y_label: "\"ns\"".into(),
            y_unit: Unit::Nanoseconds,
            y_scale: Scale::Log,
            y_edges: vec![100.0, 200.0, 400.0],
            columns: vec![vec![1, 0], vec![0, 100]],
        };
        let (id, title) = ("heat".to_owned(), "<b>".to_owned());
        let html = map(&HeatMap { id, title, caption: String::new(), panels: vec![panel] });
        assert!(!html.contains("<a>") && !html.contains("<b>") && !html.contains("\"ns\""));
        assert_eq!(html.matches("class=\"heat\"").count(), 2);
        assert_eq!((step(1, 100), step(100, 100), step(10, 100)), (0, 7, 4));
    }
}
