package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

var peerPods = schema.GroupVersionResource{Group: "confidentialcontainers.org", Version: "v1alpha1", Resource: "peerpods"}

// Adaptor makes VMs and records them. What it made it knows until it ends.
type Adaptor struct {
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	URI     string

	mutex sync.Mutex
	// Those of all Pods, by their names.
	VMs map[string]VM
}

// Handler answers what a test asks in the place of Kata's shim. A step of a start says which VM it is about.
func (a *Adaptor) Handler() http.Handler {
	mux := http.NewServeMux()
	step := func(pattern string, step func(context.Context, *corev1.Pod, string) (any, error)) {
		mux.HandleFunc("POST "+pattern, answer(func(ctx context.Context, request *http.Request) (any, error) {
			pods := a.Client.CoreV1().Pods(request.PathValue("namespace"))
			pod, err := pods.Get(ctx, request.PathValue("pod"), metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			a.mutex.Lock()
			defer a.mutex.Unlock()
			return step(ctx, pod, request.PathValue("vm"))
		}))
	}
	step("/make/{namespace}/{pod}", a.make)
	step("/record/{namespace}/{pod}/{vm}", a.record)
	step("/stop/{namespace}/{pod}/{vm}", a.stop)
	return mux
}

// make is the first half of a start: the VM is there, and has no address yet. It gives the VM's name.
func (a *Adaptor) make(_ context.Context, pod *corev1.Pod, _ string) (any, error) {
	vm, err := makeVM(a.URI, "podvm-"+pod.Name+"-"+random()[:8])
	if err != nil {
		return nil, err
	}
	a.VMs[vm.Name] = vm
	return vm.Name, nil
}

// record is the second half: the VM has an address.
func (a *Adaptor) record(ctx context.Context, pod *corev1.Pod, name string) (any, error) {
	vm, known := a.VMs[name]
	if !known {
		return nil, fmt.Errorf("no VM %s is known", name)
	}
	yes := true
	peerPod := unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "confidentialcontainers.org/v1alpha1",
		"kind":       "PeerPod",
		"spec":       map[string]any{"cloudProvider": "libvirt", "instanceID": vm.UUID},
	}}
	peerPod.SetName(strings.ToLower(pod.Name + "-resource-" + random()[:5]))
	peerPod.SetFinalizers([]string{"peer.pod/finalizer"})
	peerPod.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: &yes, BlockOwnerDeletion: &yes,
	}})
	made, err := a.Dynamic.Resource(peerPods).Namespace(pod.Namespace).Create(ctx, &peerPod, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	vm.PeerPod = made.GetName()
	a.VMs[name] = vm
	return vm.PeerPod, nil
}

// stop deletes the VM, and takes all finalizers off the PeerPod that it remembers.
func (a *Adaptor) stop(ctx context.Context, pod *corev1.Pod, name string) (any, error) {
	vm, known := a.VMs[name]
	if !known {
		return nil, fmt.Errorf("no VM %s is known", name)
	}
	if err := vm.remove(a.URI); err != nil {
		return nil, err
	}
	delete(a.VMs, name)
	released := []byte(`[{"op": "remove", "path": "/metadata/finalizers"}]`)
	of := a.Dynamic.Resource(peerPods).Namespace(pod.Namespace)
	_, err := of.Patch(ctx, vm.PeerPod, types.JSONPatchType, released, metav1.PatchOptions{})
	return nil, err
}

// random is the name of a sandbox: 64 hex digits.
func random() string {
	var bytes [32]byte
	// It never fails.
	rand.Read(bytes[:])
	return hex.EncodeToString(bytes[:])
}
