mod properties;

use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use super::*;
use crate::webhook::{MOST_CONTAINERS, sizing::GPU};

const VM: &str = "kata.peerpods.io/vm";
const VCPUS: &str = ANNOTATIONS[0];
const MEMORY: &str = ANNOTATIONS[1];
const GPUS: &str = ANNOTATIONS[2];

fn options(sizing: Sizing) -> Options {
    Options { runtime_class: "kata-remote".into(), extended_resource: VM.into(), sizing }
}

/// The patch as it is sent, and the warnings.
fn look(pod: &Value, sizing: Sizing) -> Result<(json_patch::Patch, Vec<String>), InvalidPod> {
    let (pod, options) = (Pod::deserialize(pod).unwrap(), options(sizing));
    let Mutation { patch, warnings } = mutate(&pod, &options)?;
    Ok((serde_json::from_value(json!(patch)).unwrap(), warnings))
}

/// The Pod as the changes make it, and the warnings.
fn changed_by(sizing: Sizing, pod: &Value) -> (Value, Vec<String>) {
    let (patch, warnings) = look(pod, sizing).unwrap();
    let mut changed = pod.clone();
    json_patch::patch(&mut changed, &patch).unwrap();
    (changed, warnings)
}

fn changed(pod: &Value) -> Value {
    changed_by(Sizing::Kubernetes, pod).0
}

fn pod(spec: &Value) -> Value {
    let mut pod = json!({ "metadata": { "name": "p" }, "spec": spec });
    pod["spec"]["runtimeClassName"] = "kata-remote".into();
    pod
}

fn asks(name: &str, requests: &Value, limits: &Value) -> Value {
    json!({ "name": name, "image": "i", "resources": { "requests": requests, "limits": limits } })
}

/// The annotations for vCPUs, memory and GPUs.
fn sizes(pod: &Value) -> [Option<&str>; 3] {
    ANNOTATIONS.map(|key| pod["metadata"]["annotations"][key].as_str())
}

#[test]
fn cpu_memory_and_gpus_move_from_the_containers_to_the_annotations() {
    let before = pod(&json!({ "containers": [
        asks("a", &json!({ "cpu": "500m", "memory": "1Gi", "nvidia.com/gpu": "1" }), &json!({ "cpu": "1500m", "nvidia.com/gpu": "1" })),
        asks("b", &json!({ "cpu": "1", "memory": "1" }), &json!({ "cpu": "1", "memory": "1" })),
        { "name": "c", "image": "i" },
    ] }));
    let after = changed(&before);
    assert_eq!(sizes(&after), [Some("3"), Some("1025"), Some("1")], "{after}");
    let vm = json!({ "requests": { VM: "1" }, "limits": { VM: "1" } });
    assert_eq!(after["spec"]["containers"][0]["resources"], vm);
    assert_eq!(after["spec"]["containers"][1]["resources"], json!({}));
    assert_eq!(after["spec"]["containers"][2], before["spec"]["containers"][2]);
}

#[test]
fn ephemeral_storage_and_hugepages_are_the_vms_and_count_for_nothing() {
    let all = json!({ "ephemeral-storage": "100Gi", "hugepages-2Mi": "4Mi", "hugepages-1Gi": "2Gi", "example.com/hugepages-x": "1" });
    let before = pod(&json!({
        "containers": [asks("a", &all, &all)],
        "initContainers": [asks("i", &all, &all)],
        "resources": { "requests": { "hugepages-2Mi": "8Mi" }, "limits": { "hugepages-2Mi": "8Mi", "future": "1" } },
    }));
    let (after, warnings) = changed_by(Sizing::Kubernetes, &before);
    assert_eq!((sizes(&after), warnings.len()), ([None; 3], 0), "{warnings:?}");
    let kept = |more: Value| json!({ "requests": more, "limits": more });
    let resources = |list: &str| &after["spec"][list][0]["resources"];
    assert_eq!(resources("containers"), &kept(json!({ VM: "1", "example.com/hugepages-x": "1" })));
    assert_eq!(resources("initContainers"), &kept(json!({ "example.com/hugepages-x": "1" })));
    assert_eq!(after["spec"]["resources"], json!({ "limits": { "future": "1" } }));
    // Upstream leaves the requests of the Pod as a whole.
    let (after, _) = changed_by(Sizing::Sum, &before);
    assert_eq!(after["spec"]["resources"], before["spec"]["resources"]);
    assert_eq!(
        after["spec"]["containers"][0]["resources"],
        kept(json!({ VM: "1", "example.com/hugepages-x": "1" }))
    );
}

#[test]
fn init_containers_run_before_the_others_and_sidecars_beside_them() {
    let cpu = |name: &str, cpu: &str| asks(name, &json!({ "cpu": cpu }), &json!({}));
    let always = |mut container: Value| {
        container["restartPolicy"] = "Always".into();
        container
    };
    let init = json!([
        cpu("i1", "4"),
        always(cpu("s1", "1")),
        cpu("i2", "5"),
        always(cpu("s2", "1")),
        cpu("i3", "1")
    ]);
    for (main, kubernetes, sum) in [("2", "6", "14"), ("7", "9", "19")] {
        let before = pod(&json!({ "initContainers": init, "containers": [cpu("main", main)] }));
        assert_eq!(sizes(&changed(&before))[0], Some(kubernetes), "{before}");
        assert_eq!(sizes(&changed_by(Sizing::Sum, &before).0)[0], Some(sum), "{before}");
    }
}

#[test]
fn a_limit_counts_where_requests_are_neither_zero_nor_more() {
    for (requests, limits, expected) in [
        (json!(["1", null]), json!(["4", null]), Some("4")),
        (json!(["1", "1"]), json!(["4", null]), Some("4")),
        (json!(["3", "2"]), json!(["4", null]), Some("5")),
        (json!(["0", null]), json!(["4", null]), None),
        (json!([null, null]), json!(["4", null]), Some("4")),
        (json!([null, null]), json!([null, null]), None),
        (json!(["0", null]), json!(["0", null]), None),
    ] {
        for sizing in [Sizing::Kubernetes, Sizing::Sum] {
            let list = |cpu: &Value| if cpu.is_null() { json!({}) } else { json!({ "cpu": cpu }) };
            let container = |place: usize, name| asks(name, &list(&requests[place]), &list(&limits[place]));
            let before = pod(&json!({ "containers": [container(0, "a"), container(1, "b")] }));
            assert_eq!(sizes(&changed_by(sizing, &before).0)[0], expected, "{before}");
        }
    }
}

#[test]
fn pod_level_resources_win_and_move_to_the_vm() {
    let before = pod(&json!({
        "containers": [asks("a", &json!({ "cpu": "1", "memory": "1Gi" }), &json!({ "cpu": "9" }))],
        "resources": { "requests": { "cpu": "3", "future": "4" }, "limits": { "cpu": "3500m", "future": "4" } },
    }));
    let after = changed(&before);
    assert_eq!(sizes(&after), [Some("4"), Some("1024"), None]);
    let kept = json!({ "future": "4" });
    assert_eq!(after["spec"]["resources"], json!({ "requests": kept, "limits": kept }));
    // Upstream knows no such resources.
    let (after, warnings) = changed_by(Sizing::Sum, &before);
    assert_eq!(sizes(&after), [Some("9"), Some("1024"), None]);
    assert_eq!(after["spec"]["resources"], before["spec"]["resources"]);
    assert!(warnings[0].contains("spec.resources"), "{warnings:?}");
    // A limit of the Pod as a whole is also its request if there is no other.
    for (container, expected) in
        [(json!({}), "8"), (json!({ "cpu": "1" }), "8"), (json!({ "cpu": "0" }), "0")]
    {
        let before = pod(&json!({
            "containers": [asks("a", &container, &json!({}))], "resources": { "limits": { "cpu": "8" } },
        }));
        assert_eq!(sizes(&changed(&before))[0].unwrap_or("0"), expected, "{before}");
    }
}

#[test]
fn everything_else_is_kept() {
    let before = pod(&json!({
        "future": [{ "x": null }],
        "containers": [{
            "name": "a", "image": "i", "future": 1,
            "resources": {
                "claims": [{ "name": "device" }], "future": true,
                "requests": { "cpu": "1", "example.com/fpga": "2" },
                "limits": { "memory": "1Gi", "example.com/fpga": "2" },
            },
        }],
        "initContainers": [{ "name": "b", "resources": { "requests": {}, "limits": null, "claims": [] } }],
    }));
    let mut expected = before.clone();
    expected["spec"]["containers"][0]["resources"] = json!({
        "claims": [{ "name": "device" }], "future": true,
        "requests": { VM: "1", "example.com/fpga": "2" },
        "limits": { VM: "1", "example.com/fpga": "2" },
    });
    let mut after = changed(&before);
    after["metadata"].as_object_mut().unwrap().remove("annotations");
    assert_eq!(after, expected);
}

#[test]
fn other_pods_and_those_without_containers_stay_as_they_are() {
    let container = asks("a", &json!({ "cpu": "1" }), &json!({}));
    for other in [
        json!({ "spec": { "containers": [container] } }),
        json!({ "spec": { "runtimeClassName": "kata", "containers": [container] } }),
        json!({ "spec": { "runtimeClassName": null, "containers": [container] } }),
        pod(&json!({ "containers": [], "initContainers": [container] })),
        pod(&json!({ "containers": null })),
        json!({}),
    ] {
        assert_eq!(look(&other, Sizing::Kubernetes), Ok(Default::default()), "{other}");
    }
}

#[test]
fn an_annotation_of_the_user_stays_and_one_of_ours_is_brought_up_to_date() {
    let mut before =
        pod(&json!({ "containers": [asks("a", &json!({ "cpu": "1", "memory": "1Gi" }), &json!({}))] }));
    before["metadata"]["annotations"] = json!({ VCPUS: "8", GPUS: "", "other": "x" });
    let mut first = changed(&before);
    assert_eq!(sizes(&first), [Some("8"), Some("1024"), Some("")]);
    assert_eq!(first["metadata"]["annotations"]["other"], "x");
    let injected = asks("mesh", &json!({ "cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "2" }), &json!({}));
    first["spec"]["containers"].as_array_mut().unwrap().insert(0, injected);
    first["metadata"]["annotations"].as_object_mut().unwrap().remove(GPUS);
    let mut second = changed(&first);
    assert_eq!(sizes(&second), [Some("8"), Some("2048"), Some("2")]);
    // Another webhook set the memory in between: it is no longer ours.
    second["metadata"]["annotations"][MEMORY] = "512".into();
    second["spec"]["containers"][0] = asks("late", &json!({ "memory": "7Gi" }), &json!({}));
    let third = changed(&second);
    assert_eq!(sizes(&third), [Some("8"), Some("512"), None], "the GPUs went with their container: {third}");
}

#[test]
fn injected_containers_count_and_limit_range_defaults_do_not() {
    let before = pod(&json!({
        "containers": [asks("main", &json!({ "cpu": "2" }), &json!({ "cpu": "4" }))],
        "initContainers": [asks("setup", &json!({ "cpu": "6" }), &json!({ "cpu": "6" }))],
    }));
    let mut first = changed(&before);
    assert_eq!(sizes(&first)[0], Some("6"));
    let defaults = json!({ "cpu": "1", VM: "1" });
    first["spec"]["containers"][0]["resources"] = json!({ "requests": defaults, "limits": defaults });
    let mut proxy = asks("proxy", &json!({ "cpu": "1" }), &json!({ "cpu": "1" }));
    proxy["restartPolicy"] = "Always".into();
    first["spec"]["initContainers"].as_array_mut().unwrap().insert(0, proxy);
    let (second, warnings) = changed_by(Sizing::Kubernetes, &first);
    assert_eq!(sizes(&second)[0], Some("7"), "setup needs 6 beside the proxy's 1");
    assert!(!second["spec"].to_string().contains("\"cpu\""), "{second}");
    assert!(warnings[0].contains("LimitRange"), "{warnings:?}");
}

#[test]
fn any_resource_of_the_vm_that_comes_back_is_removed_with_a_warning() {
    let asked = json!({ "cpu": "1", "memory": "1Gi" });
    let first = changed(&pod(&json!({ "containers": [asks("a", &asked, &asked)] })));
    for (resource, comes_back) in [
        ("cpu", true),
        ("memory", true),
        (GPU, true),
        ("ephemeral-storage", true),
        ("hugepages-2Mi", true),
        ("example.com/fpga", false),
        (VM, false),
    ] {
        for list in LISTS {
            let mut again = first.clone();
            again["spec"]["containers"][0]["resources"][list][resource] = "1".into();
            let (after, warnings) = changed_by(Sizing::Kubernetes, &again);
            let is_removed = after["spec"]["containers"][0]["resources"][list][resource].is_null();
            let is_warned = warnings.iter().any(|warning| warning == REFILLED);
            assert_eq!((is_removed, is_warned), (comes_back, comes_back), "{list} {resource}");
        }
    }
    let mut injected = first;
    let storage = json!({ "ephemeral-storage": "1Gi" });
    injected["spec"]["containers"].as_array_mut().unwrap().push(asks("mesh", &storage, &storage));
    let (_, warnings) = changed_by(Sizing::Kubernetes, &injected);
    assert!(warnings.is_empty(), "no LimitRange added it: {warnings:?}");
}

#[test]
fn a_pod_gets_one_vm_for_any_number_of_requests() {
    let two = json!({ VM: "2" });
    let before = pod(&json!({
        "containers": [asks("new", &json!({}), &json!({})), asks("a", &two, &two)],
        "initContainers": [asks("i", &two, &two)],
    }));
    let after = changed(&before);
    assert_eq!(after["spec"].to_string().matches(VM).count(), 2, "one request, one limit: {after}");
    assert_eq!(after["spec"]["containers"][0]["resources"]["limits"], json!({ VM: "1" }));
}

#[test]
fn sums_beyond_64_bits_saturate() {
    let huge = || asks("a", &json!({ "cpu": "9223372036854775807", "memory": "8Ei" }), &json!({}));
    let before = pod(&json!({ "containers": [huge(), huge(), huge()] }));
    for sizing in [Sizing::Kubernetes, Sizing::Sum] {
        let (after, _) = changed_by(sizing, &before);
        assert_eq!(sizes(&after)[..2], [Some("9223372036854775807"), Some("26388279066624")]);
        assert_eq!(changed_by(sizing, &after).0, after);
    }
}

#[test]
fn an_invalid_quantity_is_refused_with_its_path() {
    for (resources, problem) in [
        (
            json!({ "limits": { "cpu": "many" } }),
            "spec.initContainers[0].resources.limits.cpu is not a quantity, such as 500m, 2 or 4Gi: correct the Pod",
        ),
        (
            json!({ "requests": { "memory": "-1" } }),
            "spec.initContainers[0].resources.requests.memory is negative: correct the Pod",
        ),
    ] {
        let before = pod(&json!({
            "containers": [{ "name": "a" }], "initContainers": [{ "name": "b", "resources": resources }],
        }));
        let told = look(&before, Sizing::Kubernetes).unwrap_err().to_string();
        assert!(told.starts_with(problem), "{told}");
    }
    let numbers =
        pod(&json!({ "containers": [asks("a", &json!({ "cpu": 2, "memory": 1.5e9 }), &json!({}))] }));
    assert_eq!(sizes(&changed(&numbers)), [Some("2"), Some("1431"), None]);
}

#[test]
fn resources_that_are_no_lists_of_quantities_cannot_be_read() {
    for (resources, problem) in [
        (json!({ "requests": { GPU: [] } }), "invalid type: sequence, expected a quantity, such as 500m"),
        (json!({ "limits": { "cpu": null } }), "invalid type: null, expected a quantity, such as 500m"),
        (json!({ "requests": "all" }), r#"invalid type: string "all", expected a map of resources"#),
        (json!("all"), r#"invalid type: string "all", expected struct Resources"#),
    ] {
        let spec = json!({ "containers": [{ "name": "a", "resources": resources }] });
        let error = Pod::deserialize(&json!({ "spec": spec })).unwrap_err().to_string();
        assert!(error.starts_with(problem), "{error}");
    }
}

#[test]
fn resources_that_are_named_twice_are_refused() {
    for (resources, problem) in [
        (r#"{ "requests": {}, "requests": {} }"#, "duplicate field `requests`"),
        (r#"{ "limits": { "cpu": "1", "cpu": "2" } }"#, "two resources have the same name"),
        (r#"{ "limits": { "a.b/c": "1", "a.b\/c": "1" } }"#, "two resources have the same name"),
    ] {
        let text =
            format!(r#"{{ "spec": {{ "containers": [{{ "name": "a", "resources": {resources} }}] }} }}"#);
        let error = serde_json::from_str::<Pod>(&text).unwrap_err().to_string();
        assert!(error.starts_with(problem), "{error}");
    }
}

#[test]
fn a_malformed_marker_is_ignored_with_a_warning() {
    let mut before = pod(&json!({ "containers": [asks("a", &json!({ "cpu": "3" }), &json!({}))] }));
    before["metadata"]["annotations"] = json!({ COUNTED: "yes" });
    let (after, warnings) = changed_by(Sizing::Kubernetes, &before);
    assert_eq!(sizes(&after)[0], Some("3"));
    assert!(warnings[0].contains(COUNTED), "{warnings:?}");
}

#[test]
fn a_pod_with_cpu_or_memory_alone_gets_a_warning() {
    let warned = |asked: Value, annotations: Value| {
        let mut before = pod(&json!({ "containers": [asks("a", &asked, &asked)] }));
        before["metadata"]["annotations"] = annotations;
        let (after, warnings) = changed_by(Sizing::Kubernetes, &before);
        let [first, second] = [warnings, changed_by(Sizing::Kubernetes, &after).1]
            .map(|warnings| warnings.iter().any(|warning| warning == ONE_ALONE));
        assert_eq!(first, second, "however often it is looked at");
        first
    };
    for (asked, annotations, expected) in [
        (json!({ "cpu": "1" }), json!({}), true),
        (json!({ "memory": "1Gi" }), json!({}), true),
        (json!({ "cpu": "1", "memory": "1Gi" }), json!({}), false),
        (json!({}), json!({}), false),
        (json!({ "cpu": "1", GPU: "1" }), json!({}), false),
        (json!({ "cpu": "1" }), json!({ MEMORY: "512" }), false),
        (json!({}), json!({ MEMORY: "512" }), true),
        (json!({ "cpu": "1" }), json!({ GPUS: "1" }), false),
        (json!({ "cpu": "1" }), json!({ INSTANCE_TYPE: "c6a.large" }), false),
        (json!({ "cpu": "1" }), json!({ INSTANCE_TYPE: "" }), true),
    ] {
        assert_eq!(warned(asked.clone(), annotations.clone()), expected, "{asked} {annotations}");
    }
    for warning in [ONE_ALONE, REFILLED, POD_LEVEL_STAYS] {
        assert!(warning.len() <= 256, "clients cut {warning}");
    }
}

#[test]
fn derived_requests_of_the_pod_do_not_hide_injected_containers() {
    let mut before = pod(&json!({
        "containers": [asks("a", &json!({ "memory": "1Gi" }), &json!({}))],
        "initContainers": [asks("i", &json!({ "memory": "2Gi" }), &json!({}))],
        "resources": { "limits": { "cpu": "4" }, "requests": { "cpu": "4", "memory": "2Gi" } },
    }));
    let mut first = changed(&before);
    assert_eq!(sizes(&first), [Some("4"), Some("2048"), None]);
    let injected = asks("mesh", &json!({ "cpu": "1", "memory": "3Gi" }), &json!({}));
    first["spec"]["containers"].as_array_mut().unwrap().push(injected);
    let second = changed(&first);
    assert_eq!(sizes(&second), [Some("4"), Some("4096"), None], "the limit of the Pod bounds its cpu");
    // A LimitRange filled the request of a container in afterwards.
    let mut stale = before.clone();
    stale["spec"]["containers"][0]["resources"]["requests"]["memory"] = "3Gi".into();
    assert_eq!(sizes(&changed(&stale))[1], Some("3072"));
    // The author of the Pod asked for another amount.
    before["spec"]["resources"]["requests"]["memory"] = "8Gi".into();
    assert_eq!(sizes(&changed(&before))[1], Some("8192"));
}

#[test]
fn too_many_containers_or_resources_are_refused_while_reading() {
    let read = |spec: Value| Pod::deserialize(&json!({ "spec": spec })).map(drop);
    let containers = |count| vec![json!({ "name": "a" }); count];
    let asking = |count: usize| {
        let requests = (0..count).map(|index| (format!("r{index}"), json!("1"))).collect::<Map<_, _>>();
        json!([{ "resources": { "requests": requests, "future": (0..1000).collect::<Vec<_>>() } }])
    };
    for list in ["containers", "initContainers"] {
        read(json!({ list: containers(MOST_CONTAINERS) })).unwrap();
        let told = read(json!({ list: containers(MOST_CONTAINERS + 1) })).unwrap_err().to_string();
        assert!(told.contains("more than 500 containers"), "{told}");
        read(json!({ list: asking(MOST_RESOURCES + 1) })).unwrap();
        let told = read(json!({ list: asking(MOST_RESOURCES + 2) })).unwrap_err().to_string();
        assert!(told.contains("more than 64 resources besides the VM"), "{told}");
    }
}

#[test]
fn a_container_may_have_64_resources_besides_the_vm_in_every_review() {
    let asking = |count: usize| {
        let zero = (0..count).map(|index| (format!("example.com/r{index}"), json!("0")));
        let zero = Value::Object(zero.collect());
        pod(&json!({ "containers": [asks("a", &zero, &zero)] }))
    };
    let first = changed(&asking(MOST_RESOURCES));
    assert_eq!(first["spec"]["containers"][0]["resources"]["requests"].as_object().unwrap().len(), 65);
    assert_eq!(changed(&first), first);
    let told = look(&asking(MOST_RESOURCES + 1), Sizing::Kubernetes).unwrap_err().to_string();
    let expected =
        "spec.containers[0].resources.requests has more than 64 resources besides the VM: correct the Pod";
    assert_eq!(told, expected);
}

#[test]
fn annotations_are_made_where_there_are_none() {
    let spec = json!({ "runtimeClassName": "kata-remote", "containers": [{ "name": "a" }] });
    for before in [json!({ "spec": spec }), json!({ "metadata": { "annotations": null }, "spec": spec })] {
        let after = changed(&before);
        assert_eq!(after["metadata"]["annotations"], json!({ COUNTED: "//;a=////" }));
        assert_eq!(GPUS, "io.katacontainers.config.hypervisor.default_gpus");
    }
}
