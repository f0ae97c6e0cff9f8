//! The conditions about cloud-api-adaptor's settings, and the annotations of its DaemonSet about them. Pure *(no client)*.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::ResourceExt;
use operator_kit::text::{cut, listed};

use super::super::{
    conditions::{Finding, Reason},
    options::MountedSettings,
    resources::AdaptorSettings,
    sources::{AdaptorPlace, Sources},
};
use crate::{
    api::v1alpha1::PeerPodConfigSpec,
    provider::{CLOUDS, Cloud, CloudSettings},
    settings::Endpoint,
};

/// How much is shown of a `CLOUD_PROVIDER` that is none, in bytes.
const LONGEST_NAME: usize = 64;

/// On the DaemonSet: the hash of the settings in force, and since when they are in force while Pods run on older ones.
pub(super) const SETTINGS: &str = "peerpods.confidentialcontainers.org/settings";
pub(super) const SETTINGS_SINCE: &str = "peerpods.confidentialcontainers.org/settings-since";

/// What cloud-api-adaptor cannot start without, or must not start with.
pub(super) fn problem(spec: &PeerPodConfigSpec, sources: &Sources) -> Option<String> {
    let (config_map, secret) = (&spec.config_map_name, &spec.cloud_secret_name);
    if !sources.config_map {
        return Some(format!(
            "the ConfigMap {config_map} does not exist; create it with cloud-api-adaptor's settings \
             (CLOUD_PROVIDER, …)"
        ));
    }
    if !sources.secret {
        return Some(format!(
            "the Secret {secret} does not exist; create it, with cloud-api-adaptor's credentials or empty"
        ));
    }
    if sources.settings.cloud_name.is_empty() {
        return Some(format!(
            "neither the ConfigMap {config_map} nor the Secret {secret} has CLOUD_PROVIDER; set it to the \
             name of the cloud"
        ));
    }
    let name = &sources.settings.cloud_name;
    if sources.settings.cloud.is_none() && !sources.has_plugin {
        return Some(format!(
            "the ConfigMap {config_map} or the Secret {secret} has the CLOUD_PROVIDER {:?}, which is no provider: set it to one of \
             {}; a provider of a plugin needs ENABLE_CLOUD_PROVIDER_EXTERNAL_PLUGIN=true",
            cut(name, LONGEST_NAME),
            CLOUDS.map(Cloud::name).join(", ")
        ));
    }
    let foreign = sources.another_cluster?;
    Some(format!("the settings of the ConfigMap {config_map} are for another cluster: {foreign}"))
}

/// The note about settings that cloud-api-adaptor may lack, while it does not start.
pub(super) fn hint(spec: &PeerPodConfigSpec, missing: &[&str]) -> Option<String> {
    (!missing.is_empty()).then(|| {
        format!(
            "neither the ConfigMap {} nor the Secret {} has {}; cloud-api-adaptor does not start without, \
             unless its Pods get them in another way",
            spec.config_map_name,
            spec.cloud_secret_name,
            missing.join(", ")
        )
    })
}

/// The condition when cloud-api-adaptor would create VMs with settings that the operator does not have. The operator would ask for
/// them in the place of its own settings, be told that they do not exist, and release their PeerPods. It releases no PeerPod of a cloud
/// that it does not know. `cloud`, `place`: those of cloud-api-adaptor's settings.
pub(super) fn diverging(
    spec: &PeerPodConfigSpec,
    cloud: Option<&'static Cloud>,
    place: Option<&AdaptorPlace>,
    mounted: &MountedSettings,
) -> Option<Finding> {
    let own = mounted.of(cloud?.name());
    // The names of the objects of a further cloud are unknown.
    let is_further = own.is_some_and(CloudSettings::are_for_one_cloud);
    let names = if is_further { None } else { other_names(spec, mounted) };
    names.map(|message| Finding::new(Reason::NotMounted, message)).or_else(|| {
        let place = place?;
        // A variable may name another cloud.
        mounted.of(place.endpoint.0).filter(|own| own.differ_from(&place.endpoint))?;
        Some(Finding::new(Reason::AnotherPlace, another_place(spec, place)))
    })
}

/// The message if the objects have other names than the mounted ones.
fn other_names(spec: &PeerPodConfigSpec, mounted: &MountedSettings) -> Option<String> {
    let differing: Vec<_> = [
        ("configMapName", &spec.config_map_name, &mounted.config_map),
        ("cloudSecretName", &spec.cloud_secret_name, &mounted.secret),
    ]
    .into_iter()
    .filter(|(_, named, mounted)| named != mounted)
    .map(|(field, named, mounted)| {
        format!("{field} is {named}, but by its flags the operator has {mounted} mounted")
    })
    .collect();
    (!differing.is_empty()).then(|| {
        format!(
            "{}; the operator would not find the VMs that cloud-api-adaptor creates with other settings, and would take them for absent: \
             name the ones that the operator has mounted, or run the operator with the ones that are named here (for a further \
             cloud by --provider), and set --settings-config-map and --credentials-secret to their names",
            differing.join("; ")
        )
    })
}

/// The message if cloud-api-adaptor makes VMs in another place than the operator's files name. A status shows no addresses.
fn another_place(spec: &PeerPodConfigSpec, place: &AdaptorPlace) -> String {
    let AdaptorPlace { endpoint: (_, Endpoint { setting, .. }), is_by_variable } = place;
    let (config_map, secret) = (&spec.config_map_name, &spec.cloud_secret_name);
    if *is_by_variable {
        return format!(
            "a variable of the DaemonSet's container, such as {setting}, points to another place than the operator's files, so the \
             operator cannot delete VMs there: remove the variable, and set it in the ConfigMap {config_map}"
        );
    }
    format!(
        "{setting} of the ConfigMap {config_map} and the Secret {secret} points to another place than in the operator's files, so the \
         operator cannot delete VMs there: after a change, Kubernetes updates these files within about a minute; if this stays, run the \
         operator with these two objects mounted (for a further cloud by --provider), and with all keys under data"
    )
}

/// Since when the present settings are in force, while Pods may run on older ones.
pub(super) fn since(current: Option<&DaemonSet>, hash: &str, now: Timestamp) -> Option<Timestamp> {
    let annotation = |key: &str| current.and_then(|it| it.annotations().get(key));
    match annotation(SETTINGS) {
        // Start times of containers are whole seconds, and a container that starts within this second has the new settings.
        Some(before) if before != hash => Timestamp::from_second(now.as_second()).ok(),
        _ => annotation(SETTINGS_SINCE).and_then(|since| since.parse().ok()),
    }
}

/// The DaemonSet's annotation about its settings.
pub(super) fn record(hash: &str, since: Option<Timestamp>) -> impl Iterator<Item = (String, String)> {
    let since = since.map(|since| (SETTINGS_SINCE.to_owned(), since.to_string()));
    [(SETTINGS.to_owned(), hash.to_owned())].into_iter().chain(since)
}

/// The condition about Pods that may run on older settings.
///
/// Settings that were set back are those of Pods that started before the first change. The operator does not know when that was, so
/// it names all Pods from before the last change, and does not say that it replaces them: the DaemonSet's template is theirs.
///
/// `is_built`: whether the DaemonSet is built from the present settings. `misfit`: the settings that its template is built from, and
/// the present ones, if Pods with the present ones would not fit the template. `is_elsewhere`: whether the present settings point to another place than the operator's files.
pub(super) fn older(
    pods: &[String],
    is_built: bool,
    misfit: Option<(&AdaptorSettings, &AdaptorSettings)>,
    is_elsewhere: bool,
) -> Finding {
    let named = match pods {
        [] => "no Pod started before the last change of the settings".to_owned(),
        pods => format!("these Pods started before the last change of the settings: {}", listed(pods)),
    };
    let what_then = match misfit {
        _ if is_elsewhere => "restart no Pod before the condition SettingsDiverge is gone".to_owned(),
        None if is_built => {
            "the DaemonSet replaces the Pods of its former templates, unless adaptor.updateStrategy says \
             OnDelete; if the settings were set back, its other Pods have them, unless they started in between: \
             delete such a Pod when its node has no peer pods"
                .to_owned()
        }
        None => {
            "a restarted Pod does not find the VMs that it runs; delete each Pod when its node has no peer \
             pods, or set adaptor.restartOnSettingsChange"
                .to_owned()
        }
        Some((built, now)) if Cloud::named(&built.cloud_name).is_none() && built.probe_port == now.probe_port => {
            format!(
                "the DaemonSet was created for CLOUD_PROVIDER {}, which is no provider of this operator, and \
                 Pods that start with the new settings do not fit it; set adaptor.restartOnSettingsChange once \
                 no peer pod runs",
                built.cloud_name
            )
        }
        Some((built, _)) => format!(
            "the DaemonSet was created for CLOUD_PROVIDER {} and PROBE_PORT {}, and Pods that start with \
             the new settings do not fit it; set these settings back, or end the peer pods and set \
             adaptor.restartOnSettingsChange",
            built.cloud_name, built.probe_port
        ),
    };
    Finding::new(Reason::OlderSettings, format!("{named}; {what_then}"))
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;
    use serde_json::{Value, json};
    use tokio::sync::watch;

    use super::{super::super::sources::tests::sources, *};
    use crate::{
        provider::{CATALOGUE, ServedCloud},
        settings::{Raw, Snapshot, State},
    };

    fn message(pods: usize, is_built: bool, misfit: Option<&AdaptorSettings>) -> String {
        let pods: Vec<_> = (0..pods).map(|number| format!("pod-{number}")).collect();
        let now = AdaptorSettings::read(None, None);
        older(&pods, is_built, misfit.map(|built| (built, &now)), false).message
    }

    #[test]
    fn nobody_is_asked_to_set_a_misspelt_provider_back() {
        let built = |cloud: &str| AdaptorSettings {
            cloud_name: cloud.to_owned(),
            ..AdaptorSettings::read(None, None)
        };
        let misspelt = message(0, false, Some(&built("libvrt")));
        assert!(
            misspelt.contains("libvrt, which is no provider")
                && !misspelt.contains("set these settings back"),
            "{misspelt}"
        );
        assert!(message(0, false, Some(&built("libvirt"))).contains("set these settings back"));
        // Its provider may come from a plugin.
        let plugin = AdaptorSettings { probe_port: 8001, ..built("mine") };
        assert!(message(0, false, Some(&plugin)).contains("set these settings back"));
    }

    #[test]
    fn the_message_says_how_to_apply_newer_settings() {
        let few = message(2, false, None);
        assert!(few.contains("pod-0, pod-1;") && few.contains("delete each Pod"), "{few}");
        let many = message(12, true, None);
        assert!(many.contains("pod-9 and 2 more; the DaemonSet replaces the Pods of its former"), "{many}");
        // It has no effect after settings were set back.
        assert!(!many.contains("restartOnSettingsChange"), "{many}");
        let built = AdaptorSettings { cloud_name: "aws".into(), ..AdaptorSettings::read(None, None) };
        for pods in [0, 2] {
            let misfit = message(pods, false, Some(&built));
            assert!(misfit.contains("CLOUD_PROVIDER aws and PROBE_PORT 8000"), "{misfit}");
            assert!(!misfit.contains("delete each Pod"), "{misfit}");
        }
    }

    #[test]
    fn a_provider_that_nobody_knows_is_deployed_if_a_plugin_may_have_it() {
        let of = |has_plugin| {
            let sources = Sources { has_plugin, ..sources(&json!({ "CLOUD_PROVIDER": "libvrt" })) };
            problem(&PeerPodConfigSpec::default(), &sources)
        };
        let message = of(false).unwrap();
        assert!(
            message.contains("CLOUD_PROVIDER \"libvrt\"") && message.contains("libvirt, aws"),
            "{message}"
        );
        assert_eq!(of(true), None);
    }

    #[test]
    fn settings_with_the_tag_of_another_cluster_reach_no_cloud_api_adaptor() {
        let of = |another_cluster| {
            let sources = Sources { another_cluster, ..sources(&json!({ "CLOUD_PROVIDER": "aws" })) };
            problem(&PeerPodConfigSpec::default(), &sources)
        };
        assert_eq!(of(None), None);
        let message = of(Some("by TAGS")).unwrap();
        assert_eq!(message, "the settings of the ConfigMap peer-pods-cm are for another cluster: by TAGS");
    }

    #[test]
    fn settings_that_the_operator_does_not_have_are_named() {
        let mounted = mounted(vec![in_force(ServedCloud::any_but([]), &[])]);
        let of_cloud = |cloud: &str, config_map: &str, secret: &str| {
            let spec = PeerPodConfigSpec {
                cloud_secret_name: secret.to_owned(),
                config_map_name: config_map.to_owned(),
                ..PeerPodConfigSpec::default()
            };
            let sources = sources(&json!({ "CLOUD_PROVIDER": cloud }));
            diverging(&spec, sources.settings.cloud, None, &mounted).map(|finding| finding.message)
        };
        let finding = |config_map: &str, secret: &str| of_cloud("libvirt", config_map, secret);
        assert_eq!(finding("peer-pods-cm", "peer-pods-secret"), None);
        let message = finding("other", "peer-pods-secret").unwrap();
        assert!(
            message.starts_with(
                "configMapName is other, but by its flags the operator has peer-pods-cm mounted; the"
            ),
            "{message}"
        );
        let message = finding("peer-pods-cm", "other").unwrap();
        assert!(
            message.starts_with(
                "cloudSecretName is other, but by its flags the operator has peer-pods-secret mounted; the"
            ),
            "{message}"
        );
        let message = finding("a", "b").unwrap();
        assert!(
            message.contains("configMapName is a") && message.contains("cloudSecretName is b"),
            "{message}"
        );
        assert_eq!(of_cloud("gcp", "a", "b"), Some(message));
        assert_eq!(
            of_cloud("a-plugin's", "a", "b"),
            None,
            "the operator deletes and releases nothing of that cloud"
        );
    }

    /// Mounted settings of these clouds.
    fn mounted(clouds: Vec<CloudSettings>) -> MountedSettings {
        MountedSettings { config_map: "peer-pods-cm".into(), secret: "peer-pods-secret".into(), clouds }
    }

    /// Settings for these clouds, with these values in force, if there are any.
    fn in_force(clouds: ServedCloud, values: &[(&str, &str)]) -> CloudSettings {
        let values = values.iter().map(|(name, value)| ((*name).to_owned(), SecretString::from(*value)));
        let raw = Raw { settings: values.collect(), ..Raw::default() };
        let current = Snapshot::parse(&raw, CATALOGUE).ok().map(Into::into);
        CloudSettings::new(clouds, watch::channel(State { current, ..State::default() }).1)
    }

    #[test]
    fn another_place_than_the_operators_is_named_by_its_setting_alone() {
        let docker = Cloud::named("docker").unwrap();
        let first = [("CLOUD_PROVIDER", "libvirt"), ("LIBVIRT_URI", "qemu+ssh://kvm-1/system")];
        let further = [("CLOUD_PROVIDER", "docker"), ("DOCKER_HOST", "tcp://10.0.0.1:2375")];
        let mounted = mounted(vec![
            in_force(ServedCloud::any_but([docker]), &first),
            in_force(ServedCloud::only(docker), &further),
        ]);
        let spec = PeerPodConfigSpec { config_map_name: "further".into(), ..PeerPodConfigSpec::default() };
        let variables = |env: Value| {
            let containers = json!([{ "name": "a", "image": "r/cloud-api-adaptor", "env": env }]);
            let spec = json!({ "selector": {}, "template": { "spec": { "containers": containers } } });
            serde_json::from_value::<DaemonSet>(json!({ "metadata": {}, "spec": spec })).unwrap()
        };
        let with = |spec: &PeerPodConfigSpec, settings: Value, env: Value| {
            let sources = sources(&settings);
            let place = sources.place(Some(&variables(env)));
            let found = diverging(spec, sources.settings.cloud, place.as_ref(), &mounted)?;
            assert_eq!(found.reason, Reason::AnotherPlace);
            Some(found.message)
        };
        let of = |spec: &PeerPodConfigSpec, settings: Value| with(spec, settings, json!([]));
        let libvirt = |uri: &str| {
            of(&PeerPodConfigSpec::default(), json!({ "CLOUD_PROVIDER": "libvirt", "LIBVIRT_URI": uri }))
        };
        assert_eq!(libvirt("qemu+ssh://root@kvm-1/system?no_verify=1"), None, "the same place");
        let message = libvirt("qemu+ssh://kvm-2/system").unwrap();
        assert!(message.starts_with("LIBVIRT_URI of the ConfigMap peer-pods-cm and the"), "{message}");
        assert!(!message.contains("kvm"), "{message}");
        assert_eq!(libvirt("qemu+tls://kvm-2/system?tls_priority=NORMAL"), None, "it cannot be read");
        let host = |host: &str| of(&spec, json!({ "CLOUD_PROVIDER": "docker", "DOCKER_HOST": host }));
        assert_eq!(host("tcp://10.0.0.1:2375"), None, "the operator has settings of that cloud's own");
        let message = host("tcp://10.0.0.2:2375").unwrap();
        assert!(message.starts_with("DOCKER_HOST of the ConfigMap further and the"), "{message}");
        let own = json!({ "CLOUD_PROVIDER": "libvirt", "LIBVIRT_URI": "qemu+ssh://kvm-1/system" });
        let overruled = |uri: &str| {
            let env = json!([{ "name": "LIBVIRT_URI", "value": uri }, { "name": "POD", "valueFrom": {} }]);
            with(&PeerPodConfigSpec::default(), own.clone(), env)
        };
        assert_eq!(overruled("qemu+ssh://kvm-1/system"), None);
        let message = overruled("qemu+ssh://kvm-2/system").unwrap();
        assert!(
            message.starts_with("a variable of the DaemonSet's container, such as LIBVIRT_URI,"),
            "{message}"
        );
        // An empty one names the default.
        assert!(overruled("").is_some());
        let env = json!([{ "name": "LIBVIRT_URI", "valueFrom": { "fieldRef": { "fieldPath": "a" } } }]);
        assert_eq!(
            with(&PeerPodConfigSpec::default(), own.clone(), env),
            None,
            "the operator cannot read it"
        );
        // Another cloud, for which the operator has settings, too.
        let env = json!([{ "name": "CLOUD_PROVIDER", "value": "docker" }, { "name": "DOCKER_HOST", "value": "tcp://10.0.0.2:2375" }]);
        assert!(with(&PeerPodConfigSpec::default(), own.clone(), env).is_some());
        // The operator releases nothing of a cloud without settings in force.
        let other = json!({ "CLOUD_PROVIDER": "gcp", "GCP_PROJECT_ID": "peer-pods" });
        assert_eq!(of(&PeerPodConfigSpec::default(), other), None);
    }
}
