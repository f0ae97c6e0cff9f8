package main

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Probe says whether cloud-api-adaptor is ready: once every Pod of its RuntimeClass on its node has become ready since it started.
type Probe struct {
	Client       kubernetes.Interface
	Node         string
	RuntimeClass string
	Started      time.Time
	passed       atomic.Bool
}

// Handler answers GET /startup.
func (p *Probe) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /startup", answer(func(ctx context.Context, _ *http.Request) (any, error) {
		// It never asks again.
		if p.passed.Load() {
			return nil, nil
		}
		err := p.check(ctx)
		p.passed.Store(err == nil)
		return nil, err
	}))
	return mux
}

func (p *Probe) check(ctx context.Context) error {
	pods, err := p.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + p.Node})
	if err != nil {
		return err
	}
	for _, pod := range pods.Items {
		if class := pod.Spec.RuntimeClassName; class == nil || *class != p.RuntimeClass {
			continue
		}
		for _, condition := range pod.Status.Conditions {
			switch {
			case condition.Type != corev1.PodReady:
			case condition.Status != corev1.ConditionTrue:
				return fmt.Errorf("the Pod %s/%s is not ready", pod.Namespace, pod.Name)
			case condition.LastTransitionTime.Time.Before(p.Started):
				return fmt.Errorf("the Pod %s/%s is ready since before", pod.Namespace, pod.Name)
			}
		}
	}
	return nil
}
