use super::*;

fn report(device: &str, health: DeviceHealth) -> DeviceReport {
    DeviceReport { pool: "n7".into(), device: device.into(), health, timeout_seconds: 0, message: String::new() }
}

fn id(device: &str) -> DeviceId {
    DeviceId { pool: "n7".into(), device: device.into() }
}

fn gpu() -> DriverName {
    DriverName::from("gpu")
}

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(1_700_000_000 + seconds)
}

fn names(changed: &ChangedDevices) -> Vec<&str> {
    changed.values().flatten().map(|id| &*id.device).collect()
}

fn take_unsaved(table: &mut HealthTable) -> Option<Devices> {
    let (changes, devices) = table.unsaved()?;
    table.saved(changes);
    Some(devices)
}

/// DRA-H1: an equal report changes nothing, and the file is not written again.
#[test]
fn equal_report_changes_nothing() {
    let mut table = HealthTable::default();
    let both = || vec![report("g0", DeviceHealth::Unhealthy), report("g9", DeviceHealth::Unhealthy)];
    assert_eq!(names(&table.report(&gpu(), both(), at(0)).changed), ["g0", "g9"]);
    assert!(take_unsaved(&mut table).is_some());
    assert!(table.report(&gpu(), both(), at(10)).changed.is_empty());
    assert!(take_unsaved(&mut table).is_none());
    for edit in [
        |report: &mut DeviceReport| report.message = "hot".into(),
        |report: &mut DeviceReport| report.timeout_seconds = 12,
        |report: &mut DeviceReport| report.health = DeviceHealth::Healthy,
    ] {
        let mut reports = both();
        edit(&mut reports[0]);
        assert_eq!(names(&table.report(&gpu(), reports, at(10)).changed), ["g0"]);
        table.report(&gpu(), both(), at(10));
    }
}

/// DRA-H7: timeouts of 12, 0 and -1 seconds.
#[test]
fn timeouts_have_a_default() {
    for (given, seconds) in [(12, 12), (0, 30), (-1, 30), (i64::MAX, MAX_TIMEOUT.as_secs())] {
        let report = DeviceReport { timeout_seconds: given, ..report("g0", DeviceHealth::Healthy) };
        assert_eq!(DeviceState::of(report, at(0)).timeout, Duration::from_secs(seconds));
    }
}

/// DRA-H8: the longest message stays, a longer one is cut between characters.
#[test]
fn long_messages_are_cut() {
    assert_eq!(cut("x".repeat(1024)), "x".repeat(1024));
    for length in [1025, 2048] {
        assert_eq!(cut("x".repeat(length)), "x".repeat(1021) + "...");
    }
    // 340 characters of three bytes are 1020 bytes.
    assert_eq!(cut("\u{20ac}".repeat(400)), "\u{20ac}".repeat(340) + "...");
}

/// DRA-H9: a report is outdated when its age is greater than its timeout.
#[test]
fn outdated_and_cleared_reports_are_unknown() {
    let mut table = HealthTable::default();
    let sick = DeviceReport { message: "hot".into(), ..report("g0", DeviceHealth::Unhealthy) };
    table.report(&gpu(), vec![sick], at(0));
    for age in [29, 30] {
        assert_eq!(table.of(&gpu(), &id("g0"), at(age)), (DeviceHealth::Unhealthy, "hot"));
    }
    assert_eq!(table.of(&gpu(), &id("g0"), at(31)), (DeviceHealth::Unknown, ""));
    assert_eq!(table.next_expiry(), Some(at(30)));
    assert!(table.expire(at(30)).is_empty());
    assert_eq!(names(&table.clear(&gpu())), ["g0"]);
    assert_eq!(table.of(&gpu(), &id("g0"), at(0)), (DeviceHealth::Unknown, ""));
    assert!(table.clear(&gpu()).is_empty() && table.next_expiry().is_none());
}

/// DRA-H10: a device that messages lack becomes unknown after its timeout, once, and the file has the same.
#[test]
fn missing_device_becomes_unknown_once() {
    let mut table = HealthTable::default();
    let of = |device| report(device, DeviceHealth::Healthy);
    table.report(&gpu(), vec![of("g0"), of("g1")], at(0));
    assert!(table.report(&gpu(), vec![of("g1")], at(20)).changed.is_empty());
    assert_eq!(table.of(&gpu(), &id("g0"), at(20)).0, DeviceHealth::Healthy);
    take_unsaved(&mut table);
    assert_eq!(names(&table.report(&gpu(), vec![of("g1")], at(31)).changed), ["g0"]);
    let content = write(&take_unsaved(&mut table).unwrap());
    assert!(table.report(&gpu(), vec![of("g1")], at(40)).changed.is_empty());
    let restored = HealthTable::restore(read(&content).unwrap(), at(40));
    assert_eq!(restored.of(&gpu(), &id("g0"), at(40)).0, DeviceHealth::Unknown);
    assert_eq!(restored.of(&gpu(), &id("g1"), at(40)).0, DeviceHealth::Healthy);
    assert_eq!(restored.devices[&gpu()][&id("g0")].health, DeviceHealth::Unknown);
}

/// The form of the file is that of the kubelet.
#[test]
fn file_has_the_form_of_the_kubelet() {
    let mut table = HealthTable::default();
    let report = DeviceReport { message: "hot".into(), timeout_seconds: 12, ..report("g0", DeviceHealth::Unhealthy) };
    table.report(&gpu(), vec![report], at(0));
    let content = write(&take_unsaved(&mut table).unwrap());
    assert_eq!(
        content,
        r#"{"gpu":{"Devices":{"n7/g0":{"PoolName":"n7","DeviceName":"g0","Health":"Unhealthy","LastUpdated":"2023-11-14T22:13:20Z","HealthCheckTimeout":12000000000,"Message":"hot"}}}}"#
    );
    assert_eq!(write(&read(&content).unwrap()), content);
    let zone = content.replace("22:13:20Z", "23:13:20.000000001+01:00").replace("12000000000", "0");
    let restored = HealthTable::restore(read(&zone).unwrap(), at(30));
    assert_eq!(restored.devices[&gpu()][&id("g0")].timeout, DEFAULT_TIMEOUT);
    assert_eq!(restored.of(&gpu(), &id("g0"), at(30)).0, DeviceHealth::Unhealthy);
    for bad in ["", "{", "[]", r#"{"gpu":1}"#, &content.replace("2023-", "x")] {
        assert!(read(bad).is_err(), "{bad}");
    }
}

/// The clock was set back between two agents.
#[test]
fn restored_report_of_the_future_expires() {
    let mut table = HealthTable::default();
    table.report(&gpu(), vec![report("g0", DeviceHealth::Healthy)], at(3600));
    let mut restored = HealthTable::restore(read(&write(&take_unsaved(&mut table).unwrap())).unwrap(), at(0));
    assert_eq!(restored.of(&gpu(), &id("g0"), at(30)).0, DeviceHealth::Healthy);
    assert_eq!(names(&restored.expire(at(31))), ["g0"]);
}

#[test]
fn device_is_forgotten_some_time_after_its_health_is_unknown() {
    let mut table = HealthTable::default();
    table.report(&gpu(), vec![report("g0", DeviceHealth::Healthy), report("g1", DeviceHealth::Unknown)], at(0));
    assert_eq!(names(&table.expire(at(31))), ["g0"]);
    let forgotten = at(30) + FORGET_AFTER;
    assert_eq!(table.next_expiry(), Some(forgotten));
    take_unsaved(&mut table);
    assert!(table.expire(forgotten).is_empty() && take_unsaved(&mut table).is_none());
    assert!(table.expire(forgotten + Duration::from_secs(1)).is_empty(), "no status shows anything of it");
    assert!(take_unsaved(&mut table).unwrap().values().all(|devices| devices.is_empty()));
    assert_eq!(table.next_expiry(), None);
}

/// A driver that names other devices in each message.
#[test]
fn number_of_devices_of_a_driver_is_limited() {
    let mut table = HealthTable::default();
    let named = |names: std::ops::Range<usize>| -> Vec<DeviceReport> {
        names.map(|name| report(&format!("g{name:05}"), DeviceHealth::Healthy)).collect()
    };
    let first = table.report(&gpu(), named(0..MAX_DEVICES), at(0));
    assert_eq!((names(&first.changed).len(), first.dropped), (MAX_DEVICES, 0));
    table.report(&gpu(), named(0..10), at(1));

    let second = table.report(&gpu(), named(50_000..50_002), at(2));
    assert_eq!(second.dropped, 2);
    assert_eq!(names(&second.changed), ["g00010", "g00011", "g50000", "g50001"], "the oldest ones of earlier messages");
    assert_eq!(table.of(&gpu(), &id("g00010"), at(2)).0, DeviceHealth::Unknown);
    assert_eq!(table.of(&gpu(), &id("g00000"), at(2)).0, DeviceHealth::Healthy);

    let third = table.report(&gpu(), named(60_000..60_000 + MAX_DEVICES + 5), at(3));
    assert_eq!((third.dropped, take_unsaved(&mut table).unwrap()[&gpu()].len()), (MAX_DEVICES + 5, MAX_DEVICES));
    let long = DeviceReport { device: "g".repeat(64), ..report("g0", DeviceHealth::Healthy) };
    assert_eq!(table.report(&gpu(), vec![long], at(4)).dropped, 1);
}
