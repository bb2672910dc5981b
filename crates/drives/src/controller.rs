//! Parses controllers as users write them, such as `scu:tags=250,sharing=controller,node=1`.
//!
//! The text sets up a `Controller` of the block layer. A drive names its controller in its spec, as
//! in `file@scu:path=/srv/d0`. The key `controller` of a `model` drive is something else: a part of
//! the modelled hardware.

use std::sync::Arc;

use millrace_block::{Controller, ControllerConfig, Sharing};
use millrace_machine::{Machine, NodeId};

use crate::common::words::Words;
use crate::spec::{Spec, SpecError};

/// Parses `NAME:tags=N,sharing=queue|drive|controller,node=N`. `tags` is required; `sharing`
/// defaults to `controller`, and `node` to unknown. Does not check whether the node exists.
///
/// # Errors
/// Returns `SpecError::Controller` with the mistake and a valid form.
pub fn controller_config(text: &str) -> Result<ControllerConfig, SpecError> {
    let wrong = |what: &str| Err(SpecError::Controller { spec: text.into(), what: what.into() });
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    if name.is_empty() || name.contains(|letter: char| letter == '@' || letter.is_control()) {
        return wrong("the controller's name is missing, or contains @ or a control character");
    }
    let (mut tags, mut sharing, mut node) = (None, None, None);
    for piece in rest.split(',').filter(|_| !rest.is_empty()) {
        let (key, value) = piece.split_once('=').unwrap_or((piece, ""));
        let number = |most: u32| value.parse::<u32>().ok().filter(|number| *number <= most);
        let twice = match key {
            "tags" => {
                let most = ControllerConfig::TAGS_MAX;
                let Some(number) = number(most).filter(|tags| *tags > 0) else {
                    return wrong(&format!("tags={value} is not a number from 1 to {most}"));
                };
                tags.replace(number).is_some()
            }
            "sharing" => {
                let Some(word) = Sharing::from_word(value) else {
                    let words = "queue, drive or controller";
                    return wrong(&format!("sharing={value} is unknown; write {words}"));
                };
                sharing.replace(word).is_some()
            }
            "node" => {
                let Some(number) = number(u32::MAX) else {
                    return wrong(&format!("node={value} is not the number of a NUMA node"));
                };
                node.replace(NodeId(number)).is_some()
            }
            key => return wrong(&format!("it has no key `{key}`")),
        };
        if twice {
            return wrong(&format!("{key} is given twice; remove one of them"));
        }
    }
    let Some(tags) = tags else { return wrong("it needs tags=N") };
    let sharing = sharing.unwrap_or(Sharing::Controller);
    Ok(ControllerConfig { name: name.into(), tags, sharing, node })
}

/// Returns the controller that a drive's spec names, if any.
///
/// # Errors
/// Returns `UnknownController` if no controller has this name.
pub fn controller_of<M: Machine>(
    spec: &Spec,
    controllers: &[Arc<Controller<M>>],
) -> Result<Option<Arc<Controller<M>>>, SpecError> {
    let Some(name) = &spec.controller else { return Ok(None) };
    let found = controllers.iter().find(|controller| controller.config().name == *name);
    found.map(|controller| Some(Arc::clone(controller))).ok_or_else(|| {
        let known = controllers.iter().map(|controller| controller.config().name.as_str());
        let known = known.collect::<Vec<_>>().join(", ");
        SpecError::UnknownController { name: name.clone(), known }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_machine::Native;

    fn error(text: &str) -> String {
        controller_config(text).expect_err("the text is wrong").to_string()
    }

    #[test]
    fn a_controller_is_a_name_and_its_tags() {
        let config = controller_config("hba:tags=10140,sharing=drive,node=1").unwrap();
        let node = Some(NodeId(1));
        let expected =
            ControllerConfig { name: "hba".into(), tags: 10_140, sharing: Sharing::Drive, node };
        assert_eq!(config, expected);
        let config = controller_config("scu:tags=250").unwrap();
        assert_eq!((config.sharing, config.node), (Sharing::Controller, None));
    }

    #[test]
    fn what_is_no_controller_says_why_and_what_to_write() {
        for (text, what) in [
            ("", "the controller's name is missing"),
            ("a@b:tags=1", "or contains @"),
            ("a\nb:tags=1", "or a control character"),
            ("a", "it needs tags=N"),
            ("a:tags=0", "tags=0 is not a number from 1 to 65536"),
            ("a:tags=65537", "not a number from 1 to 65536"),
            ("a:tags=1,tags=2", "tags is given twice"),
            ("a:tags=1,sharing=all", "sharing=all is unknown; write queue, drive or contr"),
            ("a:tags=1,node=x", "node=x is not the number"),
            ("a:depth=1", "it has no key `depth`"),
        ] {
            let said = error(text);
            assert!(said.contains(what) && said.contains("; write NAME:tags=N"), "{said}");
        }
    }

    #[test]
    fn a_drive_finds_its_controller_by_name() {
        let made = ["a:tags=1", "b:tags=2"].map(|text| controller_config(text).unwrap());
        let made = made.map(|config| Controller::<Native>::new(config).unwrap());
        let found = |text: &str| controller_of(&text.parse().unwrap(), &made);
        assert!(found("null:").unwrap().is_none());
        assert_eq!(found("null@b:").unwrap().unwrap().config().tags, 2);
        let error = found("null@c:size=1g").err().unwrap().to_string();
        assert_eq!(error, "there is no controller `c`; there are: a, b");
    }
}
