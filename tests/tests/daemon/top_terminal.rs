//! `millrace top` on a terminal: its screen, and the terminal's state afterwards.

use millrace_tests::raw_nbd::RawNbd;
use millrace_tests::serving::pattern;
use millrace_tests::terminal::Terminal;
use millrace_tests::{Daemon, millrace, require_clients};

const CONFIG: &str = "[[drive]]\nname = \"left\"\nspec = \"ram:size=64m\"\n\
                      [[drive]]\nname = \"right\"\nspec = \"ram:size=64m\"\n\
                      [[volume]]\nname = \"tank\"\nchunk = \"64k\"\ndrives = [\"left\", \"right\"]\n\
                      [[export]]\nvolume = \"tank\"\nnbd = \"unix:s\"\n\
                      [server]\ncontrol = \"unix:c\"\n";

/// Escape sequence that switches to the alternate screen.
const ENTERED: &str = "\x1b[?1049h";
/// The first one again.
const LEFT: &str = "\x1b[?1049l";
const CURSOR_HIDDEN: &str = "\x1b[?25l";
const CURSOR_SHOWN: &str = "\x1b[?25h";

fn top(daemon: &Daemon) -> Terminal {
    let mut command = millrace();
    command.current_dir(daemon.dir()).args(["top", "0.1", "--connect", "unix:c"]);
    Terminal::run(&command)
}

/// Makes some I/O of every kind that `top` shows.
fn load(daemon: &Daemon) {
    let mut raw = RawNbd::connect(&daemon.dir().join("s"), "tank").unwrap();
    for block in 0..200 {
        raw.write(block * 32_768, &pattern(4096, block)).unwrap();
        raw.read(block * 32_768, 4096).unwrap();
    }
}

/// The terminal is as it was: its first screen, with a cursor, lines and echo.
fn is_given_back(terminal: &Terminal) {
    let written = terminal.written();
    let last = |text| written.rfind(text).unwrap_or_else(|| panic!("no {text:?} in {written:?}"));
    assert!(last(LEFT) > last(ENTERED), "{written:?}");
    assert!(last(CURSOR_SHOWN) > last(CURSOR_HIDDEN), "{written:?}");
    let settings: Vec<&str> = written[last(LEFT)..].split_whitespace().collect();
    for setting in ["icanon", "isig", "echo", "opost"] {
        assert!(settings.contains(&setting), "no {setting} in {settings:?}");
    }
}

#[test]
fn q_ends_it_after_it_has_drawn_volumes_and_drives() {
    require_clients!("script", "stty");
    let daemon = Daemon::start(CONFIG, &["s", "c"]);
    let mut terminal = top(&daemon);
    let mut at = terminal.wait_for(ENTERED, 0);
    for text in
        ["millrace", "Volume", "r/s", "r_p99", "I/Os", "tank", "Drive", "left", "right", "quit"]
    {
        at = terminal.wait_for(text, at);
    }
    load(&daemon);
    // A full bar of the graph shows that the I/O is drawn.
    terminal.wait_for("\u{2588}", at);
    terminal.press("q");
    assert_eq!(terminal.wait().code(), Some(0), "{}", terminal.written());
    is_given_back(&terminal);
}

#[test]
fn daemon_that_goes_away_ends_it_with_error_below_shell_s_lines() {
    require_clients!("script", "stty");
    let mut daemon = Daemon::start(CONFIG, &["s", "c"]);
    let mut terminal = top(&daemon);
    terminal.wait_for("tank", 0);
    daemon.kill9();
    assert_eq!(terminal.wait().code(), Some(2), "{}", terminal.written());
    is_given_back(&terminal);
    let written = terminal.written();
    let said = &written[written.rfind(LEFT).unwrap()..];
    let error = "millrace: unix:c: the daemon has stopped";
    assert!(said.contains(error), "{said:?}");
}
