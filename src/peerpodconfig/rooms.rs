//! The rooms in which one configuration is set up.

use std::sync::Arc;

use futures::StreamExt;
use kube::Client;
use operator_kit::projection::reading;
use tokio::sync::Mutex;

use super::{
    adaptor::Adaptor,
    admission::Admission,
    apply::Objects,
    capacity::Capacity,
    drift::Drifts,
    options::Options,
    watches::{Changes, LABELLED},
};

/// The rooms. All configurations use the same nodes, so reconciles and the garbage collection take turns.
pub(super) struct Rooms {
    pub(super) adaptor: Adaptor,
    pub(super) admission: Admission,
    pub(super) capacity: Capacity,
    /// The objects that rooms write.
    pub(super) objects: Objects,
    pub(super) drifts: Arc<Drifts>,
    pub(super) turn: Mutex<()>,
}

impl Rooms {
    /// The rooms, and the changes that they watch, which must be polled.
    pub(super) fn watch(client: &Client, options: &Arc<Options>) -> (Self, Changes) {
        let drifts = Arc::new(Drifts::default());
        let objects = Objects::new(client.clone(), drifts.clone());
        let (capacity, nodes) = Capacity::watch(client);
        let (adaptor, daemon_sets, daemon_sets_elsewhere) =
            Adaptor::watch(client, objects.clone(), capacity.nodes().clone(), options.clone());
        let (admission, webhook_resources) =
            Admission::watch(client, objects.clone(), drifts.clone(), options.clone());
        let changes = Changes {
            nodes: nodes.boxed(),
            daemon_sets: daemon_sets.boxed(),
            daemon_sets_elsewhere: daemon_sets_elsewhere.boxed(),
            webhook_resources: webhook_resources.boxed(),
            policies: admission.policy_changes(&reading(client, &LABELLED)).boxed(),
        };
        (Self { adaptor, admission, capacity, objects, drifts, turn: Mutex::default() }, changes)
    }

    /// This process began or ceased to lead: another process may have led meanwhile.
    pub(super) fn leadership_changed(&self) {
        self.capacity.leadership_changed();
        self.admission.leadership_changed();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::{Path, PathBuf},
    };

    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
    }

    #[test]
    fn no_room_uses_the_controller_or_another_room_but_the_adaptor_uses_capacity() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/peerpodconfig");
        let higher = ["cleanup", "controller", "garbage_collect", "reconcile", "rooms"];
        let rooms = ["adaptor", "admission", "capacity"];
        for room in rooms {
            for file in files(&here.join(room)) {
                let text = fs::read_to_string(&file).unwrap();
                let others = rooms
                    .iter()
                    .filter(|other| **other != room && (room, **other) != ("adaptor", "capacity"));
                for module in higher.iter().chain(others) {
                    let is_path =
                        |place: usize| !text[..place].ends_with(|c: char| c.is_alphanumeric() || c == '_');
                    let uses = text.match_indices(&format!("{module}::")).any(|(place, _)| is_path(place));
                    assert!(!uses, "{} uses {module}", file.display());
                }
            }
        }
    }
}
