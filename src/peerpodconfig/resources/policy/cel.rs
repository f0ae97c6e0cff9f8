//! [`mutate`](crate::webhook::mutate()) in CEL: each variable is one step of it, under the same name if the step has one.
//!
//! Amounts are whole numbers of thousandths, and −1 if there is none. Containers are in one list, init containers first. All
//! other lists about containers have the same order.

use std::fmt::Display;

use serde_json::Value;

use crate::{
    api::v1alpha1::Sizing,
    webhook::{
        marker::{COUNTED, POD, SIZE_DIGITS},
        mutate::MOST_RESOURCES,
        sizing::{
            ANNOTATIONS, CPU, CPU_LIMIT, FIELDS, GPUS, MEMORY, MEMORY_LIMIT, MOVED, MOVED_OF_POD,
            MOVED_PREFIX, is_extended,
        },
    },
};

// The policy finds the limit of a request in the next field.
const _: () = assert!(CPU_LIMIT == CPU + 1 && MEMORY_LIMIT == MEMORY + 1);

/// The largest amount that counts. CEL's numbers of 64 bits can add up this many thousandths for 90 containers.
const MOST: &str = "100T";

/// Thousandths of a byte in one MiB.
const MILLI_MIB: u64 = 1000 << 20;

/// A text, a list of texts or a number in CEL, which writes them as JSON does.
fn literal(value: impl Into<Value>) -> Value {
    value.into()
}

/// The form of the marker annotation if the webhook or the policy wrote it: the sizes, then an entry for each container. The
/// webhook reads the same form.
fn marker_form() -> String {
    let numbers = |form: &str, count: usize| vec![form; count].join("/");
    let size = format!("([1-9][0-9]{{0,{}}})?", SIZE_DIGITS - 1);
    let (sizes, amounts) = (numbers(&size, ANNOTATIONS.len()), numbers("([0-9]+m?)?", FIELDS.len()));
    format!("^{sizes}(;[^;=]+={amounts})*$")
}

/// The sizes in the marker annotation if none was written.
fn no_sizes() -> String {
    [""; ANNOTATIONS.len()].join("/")
}

/// The variables of the policy by their names. A variable comes after those that it needs.
pub(super) fn variables(sizing: Sizing, extended_resource: &str) -> Vec<(&'static str, String)> {
    let moved = [&MOVED[..], &[extended_resource]].concat();
    vec![
        ("annotations", "object.metadata.?annotations.orValue({})".to_owned()),
        ("marker", format!("variables.annotations[?{}].orValue('')", literal(COUNTED))),
        // What was counted before: the sizes that were written, then an entry for each container.
        (
            "before",
            format!(
                "variables.marker.matches({}) ? variables.marker.split(';') : ['{}']",
                literal(marker_form()),
                no_sizes()
            ),
        ),
        ("written", "variables.before[0].split('/')".to_owned()),
        ("initContainers", "object.spec.?initContainers.orValue([])".to_owned()),
        ("containers", "variables.initContainers + object.spec.containers".to_owned()),
        // Those that end before the next one begins.
        (
            "starts",
            "variables.containers.transformList(i, it, i < size(variables.initContainers) && \
             it.?restartPolicy.orValue('') != 'Always')"
                .to_owned(),
        ),
        ("demands", demands()),
        ("peaks", peaks(sizing)),
        ("podAsked", pod_asked(sizing)),
        ("podDemand", pod_demand(sizing)),
        ("totals", totals()),
        ("sizes", sizes()),
        // The sizes to write: none if the annotation is the user's, or if nothing was requested.
        (
            "own",
            format!(
                "{}.transformList(i, it, !(it in variables.annotations) || \
                 variables.written[i] != '' && variables.annotations[it] == variables.written[i])",
                literal(ANNOTATIONS.to_vec())
            ),
        ),
        (
            "texts",
            "variables.sizes.transformList(i, it, variables.own[i] && it > 0 ? string(it) : '')".to_owned(),
        ),
        ("counted", counted()),
        ("moved", literal(moved).to_string()),
    ]
}

/// The changes to a Pod, all at once.
pub(super) fn patch(sizing: Sizing, extended_resource: &str) -> String {
    let mut changes = vec![
        few_resources(extended_resource),
        lists_of_containers("initContainers", "variables.initContainers", None),
        lists_of_containers("containers", "object.spec.containers", Some(extended_resource)),
        annotations(),
    ];
    if sizing == Sizing::Kubernetes {
        let kept = stays(literal(MOVED_OF_POD.to_vec()));
        changes.push(format!(
            "['requests', 'limits'].filter(list, has(object.spec.resources) && list in object.spec.resources).map(list, \
             JSONPatch{{op: 'add', path: '/spec/resources/' + list, value: {}}})",
            entries("object.spec.resources[list]", &kept, "", "")
        ));
    }
    changes.join(" + ")
}

/// What refuses the Pod: CEL has no other way than an error. That of a missing key names the key.
fn refused(why: &str) -> String {
    format!("{{}}[{}]", literal(why))
}

/// No change; or a refusal if a container has so many resources that the count of VMs may not read all of them.
fn few_resources(extended_resource: &str) -> String {
    let vm = literal(extended_resource);
    let few = ["requests", "limits"].map(|list| {
        let entries = format!("it.?resources.?{list}.orValue({{}})");
        format!("size({entries}) <= ({vm} in {entries} ? {} : {MOST_RESOURCES})", MOST_RESOURCES + 1)
    });
    let why = format!("a container has more than {MOST_RESOURCES} resources besides the VM: correct the Pod");
    let why = refused(&why);
    format!(
        "(variables.containers.all(it, {}) ? [] : [JSONPatch{{op: 'remove', path: {why}}}])",
        few.join(" && ")
    )
}

/// The same amount, or 0 if there is none.
fn or_zero(amount: impl Display) -> String {
    format!("({amount} < 0 ? 0 : {amount})")
}

/// A quantity of the API, in thousandths. Those with a fraction were rounded to thousandths by the API server.
fn thousandths(text: &str) -> String {
    let quantity = format!("quantity({text})");
    format!(
        "({text} == '' ? -1 : {quantity}.isLessThan(quantity('0')) ? {} : \
         {quantity}.isGreaterThan(quantity('{MOST}')) ? quantity('{MOST}').asInteger() * 1000 : \
         {quantity}.isInteger() ? {quantity}.asInteger() * 1000 : \
         int({quantity}.asApproximateFloat() * 1000.0 + 0.5))",
        refused("a negative amount of cpu, memory or GPUs: correct the Pod")
    )
}

/// The amounts of every field in these resources as texts. `or_limit`: a limit is the request, too, if there is none.
fn asked(resources: &str, or_limit: bool) -> String {
    let texts = FIELDS.map(|(list, resource)| {
        let amount = |list: &str| format!("{resources}.?{list}[?{}]", literal(resource));
        let amount = if list == "requests" && (or_limit || is_extended(resource)) {
            format!("{}.or({})", amount(list), amount("limits"))
        } else {
            amount(list)
        };
        format!("{amount}.optMap(it, string(it)).orValue('')")
    });
    format!("[{}]", texts.join(", "))
}

/// The amounts in the marker's entry that begins with this, if there is one, as an optional.
fn known(name: &str) -> String {
    format!(
        "variables.before.filter(it, it.startsWith({name} + '='))[?0].optMap(it, it.substring(size({name}) + 1).split('/'))"
    )
}

fn demands() -> String {
    format!(
        "variables.containers.map(container, {}.orValue({}).map(text, {}))",
        known("container.name"),
        asked("container.?resources", true),
        thousandths("text")
    )
}

/// What the Pod as a whole requests. Always an amount for each field; −1 if there is none.
fn pod_asked(sizing: Sizing) -> String {
    match sizing {
        Sizing::Kubernetes => {
            format!("{}.map(text, {})", asked("object.spec.?resources", false), thousandths("text"))
        }
        Sizing::Sum => format!("{}.map(it, -1)", literal(vec![0; FIELDS.len()])),
    }
}

/// The same as it was counted before, or else without the requests that the API server derived from the containers'.
fn pod_demand(sizing: Sizing) -> String {
    if sizing == Sizing::Sum {
        return "variables.podAsked".to_owned();
    }
    format!(
        "{}.optMap(texts, texts.map(text, {})).orValue(variables.podAsked.transformList(field, it, \
         field in [{CPU}, {MEMORY}] && variables.podAsked[field + 1] < 0 && it <= variables.peaks[field] ? -1 : it))",
        known(&literal(POD).to_string()),
        thousandths("text")
    )
}

/// The total of each field over the containers. By Kubernetes' rule it is the most that is in use at once.
fn peaks(sizing: Sizing) -> String {
    let fields = literal((0..FIELDS.len()).collect::<Vec<_>>());
    let amount = or_zero("it[field]");
    match sizing {
        Sizing::Sum => format!("{fields}.map(field, variables.demands.map(it, {amount}).sum())"),
        Sizing::Kubernetes => {
            let lasting =
                format!("variables.demands.transformList(i, it, !variables.starts[i], {amount}).sum()");
            let before = format!(
                "variables.demands.transformList(i, it, i < now && !variables.starts[i], {amount}).sum()"
            );
            let starting = or_zero("starting[field]");
            format!(
                "{fields}.map(field, ([{lasting}] + variables.demands.transformList(now, starting, \
                 variables.starts[now], {before} + {starting})).max())"
            )
        }
    }
}

/// The total of each field, unless the Pod as a whole has one. A limit of the Pod as a whole is its request, too, if no container
/// has one.
fn totals() -> String {
    let of_pod = FIELDS.iter().take_while(|(_, resource)| !is_extended(resource)).count();
    format!(
        "variables.peaks.transformList(field, peak, \
         field < {of_pod} && variables.podDemand[field] >= 0 ? variables.podDemand[field] : \
         field in [{CPU}, {MEMORY}] && variables.podDemand[field + 1] >= 0 && variables.demands.all(it, it[field] < 0) ? \
         variables.podDemand[field + 1] : peak)"
    )
}

/// CPUs, MiB and GPUs, rounded up.
fn sizes() -> String {
    let total = |field: usize| format!("variables.totals[{field}]");
    let larger = |request: usize, limit: usize| {
        let (request, limit) = (total(request), total(limit));
        format!("({request} == 0 ? 0 : [{request}, {limit}].max())")
    };
    let units = |amount: String, unit: u64| format!("({amount} + {}) / {unit}", unit - 1);
    let sizes: [String; ANNOTATIONS.len()] = [
        units(larger(CPU, CPU_LIMIT), 1000),
        units(larger(MEMORY, MEMORY_LIMIT), MILLI_MIB),
        units(total(GPUS), 1000),
    ];
    format!("[{}]", sizes.join(", "))
}

/// The new marker annotation.
fn counted() -> String {
    let texts = |demand: &str| {
        format!(
            "{demand}.map(it, it < 0 ? '' : it % 1000 == 0 ? string(it / 1000) : string(it) + 'm').join('/')"
        )
    };
    format!(
        "variables.texts.join('/') + (variables.podDemand.exists(it, it >= 0) ? {} + {} : '') + \
         variables.containers.transformList(i, it, ';' + it.name + '=' + {}).join('')",
        literal(format!(";{POD}=")),
        texts("variables.podDemand"),
        texts("variables.demands[i]")
    )
}

/// Whether the resource `it` stays with the node, as it is none of these.
fn stays(moved: impl Display) -> String {
    format!("!(it in {moved} || it.startsWith({}))", literal(MOVED_PREFIX))
}

/// The entries of this map of resources that are `kept`, and more keys with `one` of each.
fn entries(map: &str, kept: &str, more: &str, one: &str) -> String {
    let value = format!("string({map}[it])");
    let value = if one.is_empty() { value } else { format!("it == {one} ? '1' : {value}") };
    format!("({map}.filter(it, {kept}){more}).transformMapEntry(i, it, {{it: {value}}})")
}

/// Requests and limits of these containers, without what moves to the VM; the first one requests one of a resource.
fn lists_of_containers(place: &str, containers: &str, first_asks_for: Option<&str>) -> String {
    let changes = ["requests", "limits"].map(|list| {
        let map = format!("container.?resources.?{list}.orValue({{}})");
        let path = format!("'/spec/{place}/' + string(index) + '/resources/{list}'");
        let (more, one) = first_asks_for.map_or_else(Default::default, |resource| {
            let resource = literal(resource).to_string();
            (format!(" + (index == 0 ? [{resource}] : [])"), resource)
        });
        let value = entries(&map, &stays("variables.moved"), &more, &one);
        format!(
            "{containers}.transformList(index, container, JSONPatch{{op: 'add', path: {path}, value: {value}}})"
        )
    });
    changes.join(" + ")
}

/// Adds, replaces and removes what the policy writes, if it differs.
fn annotations() -> String {
    let add = |key: &str, value: &str| {
        format!(
            "JSONPatch{{op: 'add', path: '/metadata/annotations/' + jsonpatch.escapeKey({key}), value: {value}}}"
        )
    };
    let keys = literal(ANNOTATIONS.to_vec());
    let marker = literal(COUNTED).to_string();
    format!(
        "(size(variables.annotations) == 0 ? \
         [JSONPatch{{op: 'add', path: '/metadata/annotations', value: {{}}}}] : []) + \
         {keys}.transformList(i, it, variables.texts[i] != '', {}) + \
         {keys}.transformList(i, it, variables.own[i] && variables.texts[i] == '' && it in variables.annotations, \
         JSONPatch{{op: 'remove', path: '/metadata/annotations/' + jsonpatch.escapeKey(it)}}) + [{}]",
        add("it", "variables.texts[i]"),
        add(&marker, "variables.counted")
    )
}
