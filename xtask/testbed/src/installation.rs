//! A cluster with the operator's generated installation in it.

use std::{collections::BTreeSet, fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use cluster::{Cluster, ClusterOptions, Component, NODE_LEASE, process::Lifetime};
use k8s_openapi::{
    api::{
        authentication::v1::{TokenRequest, TokenRequestSpec},
        core::v1::{Namespace, ServiceAccount},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DynamicObject, ListParams, ObjectMeta, PostParams},
};
use peerpod_operator::{NAMESPACE, install};
use serde_json::{Value, json};
use stage::{Audit, client};
use tokio::sync::{Mutex, OnceCell};

use crate::{
    installed::{self, Installed, dynamic},
    wait::{self, DEADLINE},
};

/// The names of the custom resource definitions.
const CRDS: [&str; 2] = ["peerpods.confidentialcontainers.org", "peerpodconfigs.confidentialcontainers.org"];

/// What fails if the objects can't be installed.
const INSTALLING: &str = "installing the operator's objects";

/// How long the token of a `ServiceAccount` is valid: longer than any test.
const TOKEN_SECONDS: i64 = 24 * 60 * 60;

/// How a testbed is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder for everything that the testbed writes; it belongs to this one alone.
    pub dir: PathBuf,
    /// Whether it ends with the program that starts it.
    pub lifetime: Lifetime,
    /// How many fake nodes there are: `fake-0`, `fake-1`, …
    pub fake_nodes: usize,
    /// How long the lease of a fake node lasts; see [`ClusterOptions::node_lease`].
    pub node_lease: Duration,
    /// Whether there is a [real node](cluster::node), too.
    pub real_node: bool,
    /// Whether the API server writes down what it is asked.
    pub audit: bool,
    /// An older Kubernetes to act as, like `1.33`; none: the release itself.
    pub emulated_version: Option<String>,
    /// Whether Pods of the operator's own image are left to a [`PodRunner`](crate::PodRunner).
    pub runs_own_pods: bool,
}

impl Options {
    /// The plain testbed in this folder: one fake node, no audit log. It ends with this program.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            lifetime: Lifetime::Owned,
            fake_nodes: 1,
            node_lease: NODE_LEASE,
            real_node: false,
            audit: false,
            emulated_version: None,
            runs_own_pods: false,
        }
    }
}

/// A cluster in which everything is installed but the operator's Deployment: the operator itself is started by
/// [`Operator`](crate::Operator), on this machine. Or one in which [nothing is installed](Self::start_empty).
pub struct Testbed {
    cluster: Cluster,
    client: Client,
    audit: Option<Audit>,
    collected: BTreeSet<String>,
    installed: Mutex<Installed>,
}

impl Testbed {
    /// Starts a cluster and installs into it. The cluster checks the right to set blockOwnerDeletion, as OpenShift does.
    pub async fn start(options: &Options) -> Result<Self> {
        let (audit, options) = Self::plan(options)?;
        let (mut installed, mut collected) = (Installed::default(), BTreeSet::new());
        let cluster = Cluster::start_prepared(&options, async |cluster| {
            let client = client(&cluster.kubeconfig()).await?;
            install_all(&client, &mut installed).await.context(INSTALLING)?;
            collected = definitions(&client).await?;
            Ok(())
        })
        .await?;
        Ok(Self { audit, collected, installed: Mutex::new(installed), ..Self::around(cluster).await? })
    }

    /// The same with nothing installed.
    pub async fn start_empty(options: &Options) -> Result<Self> {
        let (audit, options) = Self::plan(options)?;
        Ok(Self { audit, ..Self::around(Cluster::start(&options).await?).await? })
    }

    /// The audit log that is asked for, and the options of the cluster.
    fn plan(options: &Options) -> Result<(Option<Audit>, ClusterOptions)> {
        fs::create_dir_all(&options.dir).with_context(|| format!("creating {}", options.dir.display()))?;
        let mut flags = vec!["--enable-admission-plugins=OwnerReferencesPermissionEnforcement".to_owned()];
        let audit = if options.audit {
            let (audit, audit_flags) =
                Audit::prepare(&std::path::absolute(&options.dir)?, NAMESPACE, &peerpod_writes())?;
            flags.extend(audit_flags);
            Some(audit)
        } else {
            None
        };
        let options = ClusterOptions {
            lifetime: options.lifetime,
            fake_nodes: options.fake_nodes,
            node_lease: options.node_lease,
            real_node: options.real_node,
            api_server_flags: flags,
            emulated_version: options.emulated_version.clone(),
            unplayed_pods: options.runs_own_pods.then(|| crate::pod_runner::PODS.to_owned()),
            ..ClusterOptions::new(options.dir.join("cluster"))
        };
        Ok((audit, options))
    }

    /// Installs into a cluster that runs already.
    pub async fn install(cluster: Cluster) -> Result<Self> {
        let mut testbed = Self::around(cluster).await?;
        testbed.install_objects().await.context(INSTALLING)?;
        testbed.collect_new_kinds().await?;
        Ok(testbed)
    }

    async fn around(cluster: Cluster) -> Result<Self> {
        let client = client(&cluster.kubeconfig()).await?;
        Ok(Self { cluster, client, audit: None, collected: BTreeSet::new(), installed: Mutex::default() })
    }

    /// Makes the garbage collector know all custom resources. It looks for kinds at its start, and then only every 30 s. A kind whose
    /// definition was deleted and made again it may find even later.
    pub async fn collect_new_kinds(&mut self) -> Result<()> {
        let definitions = definitions(&self.client).await?;
        if self.collected != definitions {
            self.cluster.restart(Component::ControllerManager).await?;
            self.collected = definitions;
        }
        Ok(())
    }

    /// Applies the generated objects as the administrator, also those that were changed or removed since, and waits until PeerPods
    /// and `PeerPodConfigs` can be made.
    pub async fn install_objects(&self) -> Result<()> {
        let mut installed = self.installed.lock().await;
        install_all(&self.client, &mut installed).await
    }

    /// Applies objects in their order as the administrator does by `kubectl apply --server-side --force-conflicts`. `what` they are is
    /// part of an error.
    pub async fn apply(&self, what: &str, objects: &[Value]) -> Result<()> {
        for object in objects {
            let applied = installed::apply(&self.client, &dynamic(object.clone())?).await;
            applied.with_context(|| format!("applying the objects of {what}"))?;
        }
        Ok(())
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The cluster, to be disturbed.
    pub fn cluster_mut(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// The administrator's client. It belongs to the runtime that the testbed was started on.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The custom resource definitions.
    pub fn crds(&self) -> Api<CustomResourceDefinition> {
        Api::all(self.client())
    }

    /// The audit log. Fails if the testbed was started without one.
    pub fn audit(&self) -> Result<&Audit> {
        self.audit.as_ref().context("the testbed keeps no audit log: start it with one")
    }

    /// Makes a new namespace in which Pods can be made; its name starts with `purpose`.
    pub async fn namespace(&self, purpose: &str) -> Result<String> {
        let metadata = ObjectMeta { generate_name: Some(format!("{purpose}-")), ..ObjectMeta::default() };
        let namespaces: Api<Namespace> = Api::all(self.client());
        let namespace = Namespace { metadata, ..Namespace::default() };
        let namespace = namespaces.create(&PostParams::default(), &namespace).await?.name_any();
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client(), &namespace);
        let what = format!("namespace {namespace} has its ServiceAccount");
        wait::present(&accounts, "default", &what, DEADLINE, |_| true).await?;
        Ok(namespace)
    }

    /// The kubeconfig of a `ServiceAccount` in the installation's namespace, with a token of its own.
    pub async fn kubeconfig_of(&self, service_account: &str) -> Result<PathBuf> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client(), NAMESPACE);
        let spec =
            TokenRequestSpec { expiration_seconds: Some(TOKEN_SECONDS), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let token = accounts.create_token_request(service_account, &PostParams::default(), &request).await;
        let token = token.with_context(|| format!("asking for a token of {service_account}"))?;
        let token = token.status.context("a token request was answered without a token")?.token;
        self.cluster.kubeconfig_for_token(service_account, &token)
    }

    /// A client under a `ServiceAccount` of the installation's namespace.
    pub async fn client_of(&self, service_account: &str) -> Result<Client> {
        client(&self.kubeconfig_of(service_account).await?).await
    }
}

/// Applies the generated objects where they are not as they were `installed`, and waits until objects of the custom kinds can be made.
async fn install_all(client: &Client, installed: &mut Installed) -> Result<()> {
    // Deriving the schemas takes a while, and many tests install.
    static OBJECTS: OnceCell<Vec<DynamicObject>> = OnceCell::const_new();
    let objects = OBJECTS.get_or_try_init(|| async { generated() }).await?;
    if !installed.apply(client, objects).await? {
        return Ok(());
    }
    let established = |crd: &CustomResourceDefinition| {
        let conditions = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
        crd.metadata.deletion_timestamp.is_none()
            && conditions.into_iter().any(|it| it.type_ == "Established" && it.status == "True")
    };
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for name in CRDS {
        let what = format!("objects of {name} can be made");
        wait::present(&crds, name, &what, DEADLINE, established).await?;
    }
    Ok(())
}

/// The identities of all custom resource definitions.
async fn definitions(client: &Client) -> Result<BTreeSet<String>> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let found = crds.list_metadata(&ListParams::default()).await?;
    Ok(found.into_iter().filter_map(|definition| definition.uid()).collect())
}

/// The generated objects but the Deployment.
fn generated() -> Result<Vec<DynamicObject>> {
    let manifests = install::objects(&install::Options::default())?.into_iter();
    let objects = manifests.map(|manifest| manifest.object).filter(|object| object["kind"] != "Deployment");
    objects.map(dynamic).collect()
}

/// Audit rules: every write to a PeerPod is logged, and a patch with its content.
fn peerpod_writes() -> [Value; 2] {
    let ours = [json!({ "group": "confidentialcontainers.org" })];
    let rule = |level: &str, verbs: &[&str]| json!({ "level": level, "verbs": verbs, "resources": ours });
    [rule("Request", &["patch"]), rule("Metadata", &["create", "update", "delete", "deletecollection"])]
}
