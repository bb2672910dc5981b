//! Models read from files.

use millrace_simulator::{Model, Wiring};

const FILE: &str = r#"
name = "two boards"
cores_per_socket = 10
sockets = 8
sockets_per_board = 4
wiring = "ring"
ghz = 2.4

[cache]
l1 = { ns = 1.5, origin = "manual" }
socket = { ns = 45.0, origin = "paper" }
one_hop = { ns = 110.0, origin = "paper" }
two_hops = { ns = 160, origin = "paper" }
board = { ns = 300.0, origin = "guess" }
memory = { ns = 100.0, origin = "paper" }
link = { bytes_per_ns = 12.8, origin = "data sheet" }
board_link = { bytes_per_ns = 6.4, origin = "data sheet" }
spinner = { share = 0.5, origin = "half of them come first" }

[cpu]
locked = { ns = 8.0, origin = "manual" }
fence = { ns = 10.0, origin = "manual" }
clock_read = { ns = 10.0, origin = "measured" }
spin_poll = { ns = 40.0, origin = "manual" }

[threads]
system_call = { ns = 100.0, origin = "measured" }
context_switch = { ns = 1500.0, origin = "measured" }
wake = { ns = 500.0, origin = "measured" }
wake_latency = { ns = 3000.0, origin = "measured" }
interrupt_send = { ns = 300.0, origin = "measured" }
interrupt_handle = { ns = 900.0, origin = "measured" }
time_slice = { ns = 3e6, origin = "kernel default" }

[work]
request_queue = { lines = 5, origin = "counted" }
interface = { ns = 400.0, origin = "input" }
submit = { ns = 300.0, origin = "input" }
insert = { ns = 100.0, origin = "input" }
dispatch = { ns = 200.0, origin = "input" }
driver = { ns = 100.0, origin = "input" }
complete = { ns = 150.0, origin = "input" }
jitter = { share = 0.05, origin = "avoids lockstep" }
"#;

fn error_of(text: &str) -> String {
    toml::from_str::<Model>(text).expect_err("the input must be refused").to_string()
}

#[test]
fn a_file_with_every_cost_and_its_origin_is_a_model() {
    let model: Model = toml::from_str(FILE).expect("complete");
    assert_eq!((model.cpus(), model.wiring), (80, Wiring::Ring));
    assert_eq!(model.threads.time_slice.ns, 3e6);
    assert_eq!(model.cache.board.origin, "guess");
    model.validate().expect("within its ranges");
}

#[test]
fn cost_without_origin_and_unknown_key_are_errors_that_name_it() {
    let text = error_of(&FILE.replace(r#"{ ns = 45.0, origin = "paper" }"#, "{ ns = 45.0 }"));
    assert!(text.contains("socket = { ns = 45.0 }") && text.contains("origin"), "{text}");
    let text = error_of(&FILE.replace("one_hop", "one_hopp"));
    assert!(text.contains("unknown field `one_hopp`"), "{text}");
    let text = error_of(&FILE.replace("ghz = 2.4", ""));
    assert!(text.contains("missing field `ghz`"), "{text}");
    let wrong = FILE.replace("spinner = { share = 0.5", "spinner = { share = 5.0");
    let model: Model = toml::from_str(&wrong).expect("the value must be a number");
    assert_eq!(
        model.validate().expect_err("too much").to_string(),
        "machine model: cache.spinner: share must be 0 to 1, is 5"
    );
}

#[test]
fn name_that_is_no_word_and_clock_that_stands_still_are_refused() {
    let refused = |old: &str, new: &str| {
        let model: Model =
            toml::from_str(&FILE.replace(old, new)).expect("the text must be well formed");
        model.validate().expect_err("no machine has the mechanism").to_string()
    };
    let name = FILE.lines().find(|line| line.starts_with("name")).expect("it has a name");
    for wrong in [r#"name = """#, r#"name = "a\u001bb""#] {
        let text = refused(name, wrong);
        let rule =
            "machine model: name: must not be empty, and must not contain control characters";
        assert!(text.starts_with(rule), "{text}");
    }
    let text = refused("ghz = 2.4", "ghz = 1e-300");
    assert_eq!(text, "machine model: ghz: must be at least 0.01 and below 100, is 1e-300");
}
