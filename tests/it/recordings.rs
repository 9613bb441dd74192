//! Recordings of real agents, run again by the cores as they are now.
//!
//! To add one: save it from a running agent (`curl -o tests/recordings/what-happened.podrec localhost:10255/recording`) and
//! say in `tests/recordings/README.md` what it shows. It holds the pods' specs, so look at them first
//! (`podwright replay FILE --pod NAMESPACE/NAME`).

use std::fs;
use std::path::Path;

use podwright_actors::replay::{Pick, replay};

#[test]
fn every_recording_leads_to_the_states_it_led_to_before() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let recordings: Vec<_> = paths.filter(|path| path.extension().is_some_and(|end| end == "podrec")).collect();
    assert!(!recordings.is_empty());
    for path in recordings {
        let run = replay(&fs::read(&path).unwrap(), &Pick::Nobody);
        let run = run.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(run.difference, None, "{}", path.display());
        assert!(run.events > 0 && run.plans > 0, "{}: {run:?}", path.display());
    }
}
