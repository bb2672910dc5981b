//! Experiments on a small simulated machine: what holds whatever the scheduler does.

mod promises;

use millrace_block::{GroupLimits, Priority};

use super::*;
use crate::simulation::machine;

fn client(name: &str, group: u16, iodepth: u32) -> Client {
    Client {
        name: name.into(),
        group: GroupId(group),
        rw: Rw::RandRead,
        bs_bytes: 4096,
        iodepth,
        cpu: None,
        start_ns: 0,
        thinktime_ns: 0,
        fsync: 0,
        sync: false,
    }
}

fn plan(drive: &str, clients: Vec<Client>) -> ContentionPlan {
    ContentionPlan {
        drives: vec![drive.parse().expect("the drive's spec must be valid")],
        layout: Layout::Linear,
        scheduler: SchedulerKind::None,
        queues: (Spread::Core, Spread::Core),
        cost: CostModel::default(),
        groups: vec![GroupConfig::new("a"), GroupConfig::new("b")],
        clients,
        phases: Phases {
            warm_up_ns: 20_000_000,
            length_ns: 100_000_000,
            step_ns: None,
            times: false,
        },
        seed: 1,
    }
}

fn run(plan: &ContentionPlan) -> ContentionReport {
    contend_simulated(&machine("x5690").expect("known"), plan).expect("the run must succeed")
}

#[test]
fn equal_clients_get_equal_parts_and_plans_repeat() {
    let plan = plan("model:preset=850evo", vec![client("a", 1, 8), client("b", 2, 8)]);
    let contest = run(&plan);
    let shares: f64 = contest.clients.iter().map(|row| row.share).sum();
    assert!((shares - 1.0).abs() < 1e-9 && contest.jain > 0.99, "{contest:?}");
    assert_eq!(contest.errors(), 0);
    assert_eq!(run(&plan), contest);
}

#[test]
fn without_scheduler_deep_client_takes_what_shallow_one_loses() {
    let alone = run(&plan("model:preset=850evo", vec![client("a", 1, 1)]));
    let both = run(&plan("model:preset=850evo", vec![client("a", 1, 1), client("b", 2, 256)]));
    let iops = |contest: &ContentionReport| contest.client("a").expect("it is there").iops;
    assert!(iops(&both) < iops(&alone) / 4.0, "{} {}", iops(&both), iops(&alone));
    assert!(both.jain < 0.6, "{both:?}");
}

#[test]
fn a_limit_holds_for_a_group_over_its_clients_that_share_a_cpu() {
    let mut clients = vec![client("a0", 1, 32), client("a1", 1, 4), client("b", 2, 1)];
    clients.iter_mut().for_each(|client| client.cpu = Some(3));
    let mut plan = plan("null:delay=10us", clients);
    plan.groups[0].limits = GroupLimits { iops: Some(10_000), ..GroupLimits::default() };
    (plan.phases.step_ns, plan.phases.times) = (Some(10_000_000), true);
    let contest = run(&plan);
    let iops = contest.clients[0].iops + contest.clients[1].iops;
    assert!((9_800.0..=10_200.0).contains(&iops), "{iops}");
    let row = &contest.clients[0];
    assert_eq!((row.course.series.len(), row.course.series.iter().sum::<u64>()), (10, row.ios));
    let times_ns = &row.course.times_ns;
    let counted = times_ns.iter().filter(|ns| **ns >= plan.phases.warm_up_ns).count();
    assert!(counted as u64 == row.ios && times_ns.is_sorted(), "{counted} {}", row.ios);
    // A client that waits for a limit sleeps: there are some events for each I/O, not for each
    // poll.
    let events = contest.sim_events.expect("it was simulated");
    assert!(events < 1_000_000, "{events}");
}

#[test]
fn a_client_that_waits_for_a_limit_sleeps() {
    let mut plan = plan("null", vec![client("a", 1, 32)]);
    plan.groups[0].limits = GroupLimits { iops: Some(1_000), ..GroupLimits::default() };
    let contest = run(&plan);
    let events = contest.sim_events.expect("it is simulated");
    assert!((98..=102).contains(&contest.clients[0].ios) && events < 20_000, "{contest:?}");
}

#[test]
fn shallow_client_gets_on_beside_deep_one_under_same_limit() {
    let mut plan = plan("null", vec![client("a", 1, 1), client("b", 1, 256)]);
    plan.groups[0].limits = GroupLimits { iops: Some(2_000), ..GroupLimits::default() };
    let contest = run(&plan);
    // Of 200: first come, first served by the I/O in flight would be one.
    let [a, b] = &contest.clients[..] else { panic!("two clients: {contest:?}") };
    assert!(a.ios >= 40 && (196..=204).contains(&(a.ios + b.ios)), "{} {}", a.ios, b.ios);
}

#[test]
fn realtime_goes_before_other_queues_and_starves_nobody() {
    for drive in ["model:preset=850evo", "model:preset=950pro"] {
        let mut plan = plan(drive, vec![client("a", 1, 64), client("b", 2, 64)]);
        plan.scheduler = SchedulerKind::Fair;
        plan.groups[0].priority = Priority::Realtime;
        let contest = run(&plan);
        let [a, b] = &contest.clients[..] else { panic!("two clients: {contest:?}") };
        assert!(a.share >= 0.8 && b.ios > 0, "{drive}: {} and {} I/Os", a.ios, b.ios);
    }
}

#[test]
fn a_client_that_starts_late_is_measured_by_the_time_it_had() {
    let mut plan = plan("null:delay=100us", vec![client("a", 1, 1), client("b", 2, 1)]);
    plan.clients[1].start_ns = 70_000_000;
    let contest = run(&plan);
    let [a, b] = &contest.clients[..] else { panic!("two clients: {contest:?}") };
    assert!((b.iops / a.iops - 1.0).abs() < 0.02 && b.ios * 3 < a.ios * 2, "{contest:?}");
}

#[test]
fn a_plan_that_fits_no_machine_is_refused() {
    let refuse = |change: fn(&mut ContentionPlan), expected: &str| {
        let mut plan = plan("null", vec![client("a", 1, 1)]);
        change(&mut plan);
        let model = machine("x5690").expect("known");
        let text = contend_simulated(&model, &plan).expect_err(expected).to_string();
        assert!(text.contains(expected), "{text}");
    };
    refuse(|plan| plan.clients.clear(), "0 clients are not possible; use 1 to 4096");
    refuse(|plan| plan.clients[0].cpu = Some(12), "client a: CPU 12, but the machine has 12");
    refuse(|plan| plan.clients[0].start_ns = 1 << 40, "starts only after the end of the run");
    refuse(|plan| plan.clients[0].bs_bytes = 1000, "client a: bs=1000: not a multiple");
    refuse(|plan| plan.phases.length_ns = 0, "a measured time of 0");
}
