//! One `PeerPodConfig`: how soon its objects exist, and what thousands of nodes cost.

mod nodes;
mod objects;

use std::path::{Path, PathBuf};

use anyhow::Result;
use cluster::{process::Lifetime, progress::Progress};
use kube::{Api, api::PostParams};
use peerpod_operator::{
    NAMESPACE,
    api::v1alpha1::{PeerPodConfig, RUNTIME_CLASS},
};
use peers::libvirt::Libvirtd;
use serde_json::{Value, json};
use testbed::{Operator, OperatorOptions, Options, Settings, Testbed};

use super::{build_operator, figures::Figures};

/// The configuration's name.
const NAME: &str = "bench";
/// The `ConfigMap` with cloud-api-adaptor's settings.
const CONFIG_MAP: &str = "peer-pods-cm";
/// The label of the nodes that the configuration selects.
const LABEL: &str = "bench";
/// The operator's controllers.
const BOTH: &str = "--controllers=peerpod,peerpodconfig";

pub(super) async fn run() -> Result<Figures> {
    let mut progress = Progress::new(9);
    let program = build_operator(&mut progress)?;
    let mut figures = Figures::default();
    objects::measure(&program, &mut progress, &mut figures).await?;
    nodes::measure(&program, &mut progress, &mut figures).await?;
    progress.finish();
    Ok(figures)
}

/// The cluster and programs for the measurements of configurations.
struct Stage {
    dir: PathBuf,
    program: PathBuf,
    testbed: Testbed,
    libvirtd: Libvirtd,
    configs: Api<PeerPodConfig>,
}

impl Stage {
    async fn set(dir: &Path, program: &Path, options: Options) -> Result<Self> {
        let testbed = Testbed::start(&options).await?;
        let libvirtd = Libvirtd::start(&dir.join("libvirtd"), Lifetime::Owned).await?;
        let object = |version: &str, kind: &str, name: &str| {
            let metadata = json!({ "name": name, "namespace": NAMESPACE });
            json!({ "apiVersion": version, "kind": kind, "metadata": metadata })
        };
        let class = json!({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
            "metadata": { "name": RUNTIME_CLASS }, "handler": RUNTIME_CLASS,
        });
        testbed.apply("settings", &[object("v1", "Secret", "peer-pods-secret"), class]).await?;
        let configs = Api::namespaced(testbed.client(), NAMESPACE);
        let stage = Self { dir: dir.to_owned(), program: program.to_owned(), testbed, libvirtd, configs };
        stage.apply_settings(&[]).await?;
        Ok(stage)
    }

    /// The operator's settings.
    fn settings(&self) -> Settings {
        Settings::libvirt(&self.libvirtd.host().uri().to_string())
    }

    /// Writes the settings of cloud-api-adaptor: the operator's, and these. With others it is not deployed.
    async fn apply_settings(&self, further: &[(&str, &str)]) -> Result<()> {
        let mut data = self.settings().config_map;
        data.extend(further.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        let config_map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": CONFIG_MAP, "namespace": NAMESPACE }, "data": data,
        });
        self.testbed.apply("settings", &[config_map]).await
    }

    /// The operator with these controllers.
    async fn operator(&self, name: &str, controllers: &str) -> Result<Operator> {
        let options = OperatorOptions::new(&self.program, self.dir.join(name), self.settings());
        let options = OperatorOptions { arguments: vec![controllers.to_owned()], ..options };
        Operator::start(&self.testbed, &options).await
    }

    /// Makes a configuration for the nodes with the label.
    async fn configure(&self, spec: Value) -> Result<PeerPodConfig> {
        let mut spec = spec;
        spec["nodeSelector"] = json!({ LABEL: "" });
        let config: PeerPodConfig = serde_json::from_value(json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
            "metadata": { "name": NAME }, "spec": spec,
        }))?;
        Ok(self.configs.create(&PostParams::default(), &config).await?)
    }
}
