//! Heat maps of a page: counts over time and another value, as inline SVG.
//!
//! Counts are shown in eight steps of one colour on a logarithmic scale, since a rare slow I/O
//! matters as much as the many fast ones. All cells of a step are one path, so a map stays small.

use super::Panel;
use super::plot;

const STEPS: usize = 8;

/// Grid of a heat map, with the number of I/Os in each cell.
#[derive(Debug, Clone, PartialEq)]
pub struct HeatCells {
    /// Edges of the columns along the x axis, one more than there are columns.
    pub x_edges: Vec<f64>,
    /// Edges of the rows in ascending order, one more than there are rows.
    pub y_edges: Vec<f64>,
    /// Counts: a list for each column, with a count for each row.
    pub columns: Vec<Vec<u64>>,
}

impl HeatCells {
    pub(super) fn most(&self) -> u64 {
        self.columns.iter().flatten().copied().max().unwrap_or(0)
    }

    pub(super) fn draw(&self, svg: &mut String, panel: &Panel) {
        let (x, y) = plot::axes(panel, &self.x_edges, &self.y_edges);
        let x = x.ending_at(self.x_edges.iter().copied());
        let most = self.most();
        let mut paths = vec![String::new(); STEPS];
        for (column, edges) in self.columns.iter().zip(self.x_edges.windows(2)) {
            for (count, rows) in column.iter().zip(self.y_edges.windows(2)) {
                let places = (x.at(edges[0]), x.at(edges[1]), y.at(rows[0]), y.at(rows[1]));
                if let ((Some(left), Some(right), Some(low), Some(high)), 1..) = (places, *count) {
                    let (wide, tall) = ((right - left).max(0.5), (low - high).max(0.5));
                    paths[step(*count, most)] +=
                        &format!("M{left:.1} {high:.1}h{wide:.1}v{tall:.1}h-{wide:.1}z");
                }
            }
        }
        svg.push_str("<g class=\"s0\">");
        for (step, path) in paths.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
            let opacity = 0.15 + 0.85 * step as f64 / (STEPS - 1) as f64;
            *svg += &format!("<path class=\"heat\" fill-opacity=\"{opacity:.2}\" d=\"{path}\"/>");
        }
        svg.push_str("</g>");
        plot::grid(svg, panel, &x, &y);
    }
}

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
    use crate::page::{Figure, Page, Scale, Unit};

    #[test]
    fn texts_are_escaped_and_only_cells_with_counts_are_drawn() {
        let heat = HeatCells {
            x_edges: vec![0.0, 1.0, 2.0],
            y_edges: vec![100.0, 200.0, 400.0],
            columns: vec![vec![1, 0], vec![0, 100]],
        };
        let panel = Panel::new("<a>", "s", ("\"ns\"", Unit::Nanoseconds), Vec::new());
        let panel = Panel { y_scale: Scale::Log, heat: Some(heat), ..panel };
        let figures = vec![Figure::new("heat", "<b>", "", [panel])];
        let html = Page { figures, ..Page::default() }.html();
        assert!(!html.contains("<a>") && !html.contains("<b>") && !html.contains("\"ns\""));
        assert_eq!(html.matches("class=\"heat\"").count(), 2);
        assert_eq!((step(1, 100), step(100, 100), step(10, 100)), (0, 7, 4));
    }
}
