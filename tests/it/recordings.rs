//! Replays recordings of real agents with the present code.
//!
//! To add one: save it from a running agent (`curl -o tests/recordings/what-happened.podrec --unix-socket ROOT/admin.sock
//! http://localhost/recording`) and describe it in `tests/recordings/README.md`. A recording has the pods' specs, so inspect them first
//! (`podwright replay FILE --pod NAMESPACE/NAME`).

use std::fs;
use std::path::Path;

use podwright_engine::replay::{Pick, replay};

#[test]
fn every_recording_replays_to_its_recorded_states() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let recordings: Vec<_> = paths.filter(|path| path.extension().is_some_and(|end| end == "podrec")).collect();
    assert!(!recordings.is_empty());
    for path in recordings {
        let run = replay(&fs::read(&path).unwrap(), &Pick::None);
        let run = run.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(run.difference, None, "{}", path.display());
        assert!(run.events > 0 && run.plans > 0, "{}: {run:?}", path.display());
    }
}
