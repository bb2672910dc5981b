//! What `top` shows: a head, the volumes, drives or queues or clients, the keys.
//!
//! From a [`Model`] to a frame of any size; 80 columns hold all of it, wider screens longer graphs
//! and names. Owns nothing. Called by mod.rs for each frame.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table};

use super::model::{Model, Sort};
use crate::verbs::stat::columns::Row;

const HEAD: [&str; 9] =
    ["r/s", "w/s", "rMB/s", "wMB/s", "r_p99", "w_p99", "aqu-sz", "%util", "I/Os"];
const WIDTHS: [u16; 8] = [6, 6, 6, 6, 6, 6, 6, 5];
const NAME_WIDTH: u16 = 12;
/// Rows of volumes that are shown at most, for drives to have room.
const VOLUMES_MAX: usize = 5;
const KEYS: &str =
    "q quit  tab queues/clients  s sort  r reverse  space hold  +/- interval  up/down";

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, model: &Model) {
    let volumes = model.rows("volume");
    let shown = volumes.len().min(VOLUMES_MAX);
    let areas = Layout::vertical([
        Constraint::Length(3),
        Constraint::Length(shown as u16 + 2),
        Constraint::Min(2),
        Constraint::Length(1),
    ]);
    let [head, above, below, keys] = areas.areas(frame.area());
    frame.render_widget(Paragraph::new(summary(model)), head);
    let title = match volumes.len() > shown {
        true => format!("Volume (1-{shown}/{})", volumes.len()),
        false => "Volume".to_owned(),
    };
    table(frame, above, model, (&title, &volumes[..shown]));
    let (rows, name) = (model.rows(model.below().kind()), model.below().title());
    let room = usize::from(below.height.saturating_sub(1));
    let first = model.first(room);
    let last = rows.len().min(first + room);
    let title = match rows.len() > room {
        true => format!("{name} {}-{last}/{}", first + 1, rows.len()),
        false => name.to_owned(),
    };
    table(frame, below, model, (&title, &rows[first..last]));
    frame.render_widget(Paragraph::new(KEYS).style(Style::new().fg(Color::DarkGray)), keys);
}

/// The lines at the top.
fn summary(model: &Model) -> Vec<Line<'static>> {
    let (report, server) = (model.report(), &model.report().server);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let (sort, reversed) = model.sorted();
    let order = match (sort, reversed) {
        (Sort::Given, false) => "as configured".to_owned(),
        (_, false) => format!("by {}", sort.name()),
        (_, true) => format!("by {}, reversed", sort.name()),
    };
    let held = if model.is_held() { "  HELD" } else { "" };
    let failed: u64 = report.exports.iter().map(|export| export.errors).sum();
    let first = format!(
        "  up {}  every {:.1} s  {order}",
        clock(report.uptime_ns / 1_000_000_000),
        model.interval().as_secs_f64()
    );
    let clients = &server.connections;
    let second = format!(
        "clients {}  accepted {}  refused {}  dropped {}  buffers {} MiB",
        clients.open,
        clients.accepted,
        clients.refused,
        clients.protocol_errors + clients.handshake_timeouts + clients.stalled,
        server.buffer_bytes >> 20,
    );
    let third = format!(
        "requests/s {}  in flight {}  errors/s {}  failed by drives {failed}",
        short(model.server_rate(|server| server.requests)),
        server.requests_in_flight,
        short(model.server_rate(|server| server.errors)),
    );
    let alarm = if failed > 0 { Style::new().fg(Color::Red) } else { Style::new() };
    let held = Span::styled(held, bold.fg(Color::Yellow));
    vec![
        Line::from(vec![Span::styled("millrace", bold), Span::raw(first), held]),
        Line::raw(second),
        Line::styled(third, alarm),
    ]
}

fn table(frame: &mut Frame<'_>, area: Rect, model: &Model, (title, rows): (&str, &[&Row])) {
    let graph = usize::from(area.width.saturating_sub(NAME_WIDTH + WIDTHS.iter().sum::<u16>() + 9));
    let right = |text: String, width: u16| Cell::from(format!("{text:>0$}", usize::from(width)));
    let names = HEAD.iter().zip(WIDTHS.iter().chain([&0]));
    let mut head = vec![Cell::from(title.to_owned())];
    head.extend(names.map(|(name, width)| right((*name).to_owned(), *width)));
    let lines = rows.iter().map(|row| {
        let mut cells = vec![Cell::from(row.name.escape_debug().to_string())];
        cells.extend(numbers(row).into_iter().zip(WIDTHS).map(|(text, width)| right(text, width)));
        let graph = Cell::from(model.graph(row, graph)).style(Style::new().fg(Color::Cyan));
        cells.push(graph);
        TableRow::new(cells)
    });
    let mut widths = vec![Constraint::Length(NAME_WIDTH)];
    widths.extend(WIDTHS.map(Constraint::Length));
    widths.push(Constraint::Fill(1));
    let head = TableRow::new(head).style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_widget(Table::new(lines, widths).header(head), area);
}

fn numbers(row: &Row) -> [String; 8] {
    let megabytes = |kib: f64| short(kib * 1024.0 / 1e6);
    [
        short(row.read.per_second),
        short(row.write.per_second),
        megabytes(row.read.kib_per_second),
        megabytes(row.write.kib_per_second),
        time(row.read.p99_ms),
        time(row.write.p99_ms),
        short(row.aqu_sz),
        format!("{:.0}", row.util),
    ]
}

/// A number in five characters or so.
fn short(value: f64) -> String {
    match value {
        ..0.005 => "0".to_owned(),
        ..9.995 => format!("{value:.2}"),
        ..99.95 => format!("{value:.1}"),
        ..9_999.5 => format!("{value:.0}"),
        ..999_500.0 => format!("{:.1}k", value / 1e3),
        ..999_500_000.0 => format!("{:.1}M", value / 1e6),
        _ => format!("{:.1}G", value / 1e9),
    }
}

/// Milliseconds in the unit that fits.
fn time(ms: f64) -> String {
    match ms {
        0.0 => "-".to_owned(),
        ..0.9995 => format!("{:.0}us", ms * 1e3),
        ..99.95 => format!("{ms:.1}ms"),
        ..999.5 => format!("{ms:.0}ms"),
        _ => format!("{:.1}s", ms / 1e3),
    }
}

fn clock(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours / 24 {
        0 => format!("{hours}:{minutes:02}:{seconds:02}"),
        days => format!("{days} d {}:{minutes:02}:{seconds:02}", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::model::tests::report;
    use super::*;

    /// The screen as lines of text.
    fn screen(model: &Model, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let lines = buffer.content().chunks(usize::from(width));
        lines.map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>()).collect()
    }

    fn model(drives: u64) -> Model {
        let mut model = Model::new(Duration::from_secs(1));
        model.update(report(3600, drives, 0));
        model.update(report(3602, drives, 2000));
        model
    }

    #[test]
    fn eighty_by_twenty_four_hold_volumes_drives_clients_and_keys() {
        let lines = screen(&model(4), 80, 24);
        let text = lines.join("\n");
        assert!(lines[0].starts_with("millrace  up 1:00:02  every 1.0 s  by I/Os"), "{text}");
        assert!(lines[1].starts_with("clients 3  accepted 5"), "{text}");
        assert!(lines[2].starts_with("requests/s 10.0k  in flight 0"), "{text}");
        let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
        let head = "Volume r/s w/s rMB/s wMB/s r_p99 w_p99 aqu-sz %util I/Os";
        assert_eq!(words(3), head.split(' ').collect::<Vec<_>>(), "{text}");
        assert_eq!(words(4)[..4], ["v", "6000", "0", "24.6"], "{text}");
        assert_eq!(words(6)[0], "Drive", "{text}");
        assert_eq!(
            words(7),
            ["d3", "3000", "0", "12.3", "0", "1.1ms", "-", "3.15", "0", "\u{2581}\u{2588}"]
        );
        assert_eq!(words(10)[0], "d0", "{text}");
        assert!(lines[23].starts_with("q quit"), "{text}");
    }

    #[test]
    fn more_drives_than_lines_are_numbered_and_scrolled() {
        let mut model = model(40);
        assert!(screen(&model, 80, 24)[6].starts_with("Drive 1-16/4"), "16 of 40 fit");
        model.scroll(10);
        assert!(screen(&model, 80, 24)[7].starts_with("d29 "));
        model.scroll(100);
        assert!(screen(&model, 80, 24)[22].starts_with("d0 "));
    }

    #[test]
    fn a_screen_of_any_size_is_drawn() {
        for (width, height) in [(1, 1), (10, 3), (40, 12), (79, 7), (300, 100)] {
            screen(&model(20), width, height);
        }
    }

    #[test]
    fn numbers_fit_their_columns() {
        for value in [0.0, 0.01, 9.999, 99.99, 9999.9, 99_999.0, 999_499.0, 12_345_678.0, 9e10] {
            assert!(short(value).len() <= 6, "{value}: {}", short(value));
            assert!(time(value.min(1e6)).len() <= 7, "{value}: {}", time(value));
        }
        assert_eq!((short(12_345.0), time(0.05), time(12.34)), {
            ("12.3k".into(), "50us".into(), "12.3ms".into())
        });
        assert_eq!(clock(90_061), "1 d 1:01:01");
    }
}
