use super::*;

#[test]
fn an_identifier_is_a_uuid_in_one_spelling() {
    let canonical = "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11";
    for raw in [canonical, "0DD2F0C5-6A3D-44A7-9B5E-2F7A6C2F9A11"] {
        assert_eq!(server(raw), Ok(ParsedId::unscoped(canonical)));
    }
    for raw in ["", "podvm-web-1a2b3c4d", "../..", "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11/x"] {
        assert!(server(raw).is_err(), "{raw}");
    }
}

fn server_that_is(status: &str, task: &str) -> Server {
    let json = serde_json::json!({
        "pvmInstanceID": "1", "serverName": "a", "status": status, "taskState": task,
        "creationDate": "2020-10-03T06:43:19.000Z",
    });
    serde_json::from_value(json).unwrap()
}

#[test]
fn a_status_says_whether_a_server_runs_as_long_as_it_is_known() {
    for (status, task, expected) in [
        ("ACTIVE", "", PowerState::Running),
        ("BUILD", "spawning", PowerState::Running),
        ("HARD_REBOOT", "", PowerState::Running),
        ("SHUTOFF", "starting", PowerState::Running),
        ("SHUTOFF", "", PowerState::Stopped),
        ("SHUTOFF", "deleting", PowerState::Leaving),
        ("ERROR", "", PowerState::Unknown),
        ("WARNING", "", PowerState::Unknown),
    ] {
        assert_eq!(server_that_is(status, task).power(), expected, "{status} {task}");
    }
}

#[test]
fn a_server_is_leaving_by_its_status_or_by_its_task() {
    let server = server_that_is;
    assert!(server("ACTIVE", "deleting").is_leaving() && server("DELETING", "").is_leaving());
    assert!(!server("ACTIVE", "").is_leaving() && !server("BUILD", "spawning").is_leaving());
    assert!(server("BUILD", "").is_being_built() && !server("ERROR", "").is_being_built());
    assert!(serde_json::from_str::<Servers>("{}").is_err(), "any other JSON is no list of nothing");
}

#[test]
fn a_listed_identifier_is_found_in_any_spelling() {
    let raw = "0DD2F0C5-6A3D-44A7-9B5E-2F7A6C2F9A11";
    let listed = Server { id: raw.to_owned(), ..server_that_is("ACTIVE", "") };
    assert!(ids(vec![listed]).contains(&server(raw).unwrap().canonical));
}

#[test]
fn the_documented_actions_are_those_that_are_tested() {
    let page = include_str!("../../../docs/src/providers/ibmcloud-powervs.md");
    for action in ACTIONS {
        assert!(page.contains(&format!("| `{action}` |")), "the page lacks {action}");
    }
}
