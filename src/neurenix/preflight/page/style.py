"""Style and script of the page.

The script sorts a table by the pressed head, hides rows that do not match a filter, and turns
several targets into tabs. It inserts no text from a program, and the page is complete without it.
Fills are light with dark text in either colour scheme; they are the "light" scheme of P. Tol,
Colour Schemes (SRON/EPS/TN/09-002), for colour-blind readers. Colour is never the only mark: kinds
have shapes, severities signs, cells names.
"""

STYLE = """
:root{color-scheme:light dark;--ink:#1d2329;--paper:#fff;--soft:#f3f5f7;--line:#cfd5db;
--sub:#55606b;--good:#1f7a3d;--warn:#8a4f00;--bad:#a3242b;--mark:#fff0b8}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaee;--paper:#14181c;--soft:#1f252b;
--line:#3a444d;--sub:#a3aeb8;--good:#6fcf8b;--warn:#f0b055;--bad:#ff8f8f;--mark:#4a3d0c}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1120px;margin:0 auto;padding:24px 16px 64px}
h1{font-size:26px;line-height:1.25;margin:0;overflow-wrap:anywhere}
h2{font-size:19px;margin:36px 0 8px}h3{font-size:14px;margin:16px 0 6px}
h2.target-name{font-size:23px;border-top:2px solid var(--line);padding-top:20px}
.sub{color:var(--sub);margin:4px 0 12px}
.stamp{display:inline-block;border:1px solid var(--line);border-radius:5px;padding:1px 8px;
font-size:13px;color:var(--sub)}
.verdict{font-size:17px;margin:10px 0 0}.verdict b.good{color:var(--good)}
.verdict b.bad{color:var(--bad)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(175px,1fr));gap:12px;margin:18px 0}
.card{background:var(--soft);border-radius:8px;padding:11px 12px;border-left:4px solid var(--line)}
.card.good{border-left-color:var(--good)}.card.bad{border-left-color:var(--bad)}
.label,.detail{color:var(--sub);font-size:13px}.value{font-size:19px;font-weight:600}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;padding:0;
margin:8px 0;font-size:13px}
.legend li{display:flex;align-items:center}
.swatch{display:inline-block;width:13px;height:13px;border-radius:2px;margin-right:6px;
border:1px solid var(--sub)}
.sign{width:16px;height:16px;margin-right:5px;flex:none}
.picture{overflow-x:auto;margin:8px 0}
.picture svg{display:block;width:100%;min-width:600px;height:auto}
.bar-picture svg{min-width:0}
.fluid{overflow:visible}.fluid svg{min-width:0;overflow:visible}
.fluid text.name{paint-order:stroke;stroke:var(--paper);stroke-width:3px;stroke-linejoin:round}
.points{margin:4px 0 12px;padding-left:28px;font-size:13px}
@media(max-width:600px){.bar-picture text{display:none}}
svg text{font:12px system-ui,sans-serif;fill:var(--sub)}
svg text.on-cell{fill:#111;pointer-events:none}svg text.strong{font-weight:600}
svg text.name{fill:var(--ink)}
.cell,.group{stroke:#4b545c;stroke-width:.8}.group{fill-opacity:.55}
.padding{fill:url(#hatch);stroke:none}
.free{fill:var(--soft);stroke:var(--line)}
.limit{stroke:var(--bad);stroke-width:2.5}
.grid{stroke:var(--line);stroke-width:.7}.split{stroke:var(--sub);stroke-dasharray:4 4}
.roof{fill:none;stroke:var(--ink);stroke-width:2}
.mark{stroke:#333b42;stroke-width:1;fill-opacity:.8}.mark:hover{stroke:var(--bad);stroke-width:2.5}
.whisker{stroke:var(--ink);stroke-width:1.5}.frontier{fill:none;stroke:var(--ink);
stroke-dasharray:6 4}.hollow{fill:var(--paper);stroke:var(--sub);stroke-width:1.5}
.solid{fill:#77aadd;stroke:var(--ink);stroke-width:1.5}
.r-parameters,.r-argument,.k-compute{fill:#77aadd;background:#77aadd}
.r-optimizer,.k-ici{fill:#ffaabb;background:#ffaabb}
.r-batch{fill:#44bb99;background:#44bb99}
.r-model_state,.k-vector{fill:#bbcc33;background:#bbcc33}
.r-temporaries,.k-hbm{fill:#ee8866;background:#ee8866}
.r-activations{fill:#aaaa00;background:#aaaa00}
.r-gradients{fill:#eeaaee;background:#eeaaee}
.r-new-results,.k-dcn{fill:#eedd88;background:#eedd88}
.r-code,.k-overhead{fill:#dddddd;background:#dddddd}
.r-metrics,.r-other,.k-host{fill:#99ddff;background:#99ddff}
.hatched{background:repeating-linear-gradient(45deg,#fff 0 3px,#444 3px 4.5px)}
table{border-collapse:collapse;width:100%;font-size:13px}
th,td{text-align:left;padding:4px 12px 4px 0;border-bottom:1px solid var(--line);
white-space:nowrap;max-width:310px;overflow:hidden;text-overflow:ellipsis}
th.n,td.n{text-align:right;font-variant-numeric:tabular-nums}
td.why{white-space:normal;min-width:220px}td.options{max-width:150px}
.wide{overflow:auto}.operations{max-height:70vh}
.operations th{position:sticky;top:0;background:var(--paper)}
th button{font:inherit;font-weight:600;color:inherit;background:none;border:0;padding:2px 0;
cursor:pointer}
th button::after{content:"\\2195";color:var(--sub);margin-left:4px}
th[aria-sort=descending] button::after{content:"\\2193";color:inherit}
th[aria-sort=ascending] button::after{content:"\\2191";color:inherit}
:focus-visible{outline:2px solid #3b82c4;outline-offset:1px}
input{font:inherit;padding:5px 9px;border:1px solid var(--sub);border-radius:5px;width:260px;
max-width:60vw;background:var(--paper);color:var(--ink)}
summary{cursor:pointer}
.findings{padding:0;list-style:none}
.finding{background:var(--soft);border-radius:8px;padding:10px 14px;margin:10px 0;display:grid;
gap:4px 22px;border-left:4px solid var(--line)}
.finding.error{border-left-color:var(--bad)}.finding.warning{border-left-color:var(--warn)}
.finding>*{min-width:0}.finding p{margin:4px 0}.finding h4{margin:10px 0 2px;font-size:14px}
.finding .place{font-size:13px;margin:0}
.fix::before{content:"\\2192  "}
@media(min-width:900px){.finding:has(.source){grid-template-columns:1fr 1fr}}
.pre{white-space:pre-wrap;overflow-wrap:anywhere}
.badge{font-weight:600;font-size:13px;color:var(--sub)}
.warning .badge{color:var(--warn)}.error .badge{color:var(--bad)}.rule{font-weight:600}
.effect{border:1px solid var(--line);border-radius:9px;padding:0 8px;font-size:13px}
code{font-size:13px;color:var(--sub);overflow-wrap:anywhere}
.source{margin:2px 0;padding:8px 0;background:var(--paper);border:1px solid var(--line);
border-radius:6px;overflow-x:auto;font-size:12.5px;line-height:1.55;align-self:start}
.source span,.source mark{display:block;padding:0 10px;width:max-content;min-width:100%}
.source mark{background:var(--mark);color:inherit;font-weight:600}
.tabs{display:flex;flex-wrap:wrap;gap:4px;border-bottom:2px solid var(--line);margin-top:28px}
.tabs button{font:inherit;color:inherit;background:var(--soft);border:1px solid var(--line);
border-bottom:0;border-radius:6px 6px 0 0;padding:6px 14px;cursor:pointer}
.tabs [aria-selected=true]{background:var(--paper);font-weight:600;box-shadow:0 2px var(--paper)}
.tabs~.target h2.target-name{border-top:0;margin-top:14px;padding-top:0}
[hidden]{display:none}
@media print{.target[hidden]{display:block}.wide{max-height:none;overflow:visible}
.tools,.tabs{display:none}}
"""

SCRIPT = """
'use strict';
const make=(name,attributes)=>{const made=document.createElement(name);
for(const key in attributes)made.setAttribute(key,attributes[key]);return made};
for(const table of document.querySelectorAll('table.sortable')){
const body=table.tBodies[0],heads=[...table.tHead.rows[0].cells];
heads.forEach((head,column)=>{
const button=make('button',{type:'button'}),numeric=head.classList.contains('n');
button.textContent=head.textContent;head.replaceChildren(button);
const value=row=>{const cell=row.cells[column];
return numeric?Number(cell.dataset.v):cell.textContent.toLowerCase()};
button.addEventListener('click',()=>{
const now=head.getAttribute('aria-sort');
const down=now?now==='ascending':numeric;
const rows=[...body.rows].sort((a,b)=>{const x=value(a),y=value(b);
return (x<y?-1:x>y?1:0)*(down?-1:1)});
heads.forEach(other=>other.removeAttribute('aria-sort'));
head.setAttribute('aria-sort',down?'descending':'ascending');body.append(...rows)})});
const tools=table.parentElement.previousElementSibling;
if(!tools||!tools.classList.contains('tools'))continue;
const status=tools.querySelector('[role=status]');tools.hidden=false;
tools.querySelector('input').addEventListener('input',event=>{
const wanted=event.target.value.toLowerCase().split(' ');let shown=0;
for(const row of body.rows){const words=row.textContent.toLowerCase();
row.hidden=!wanted.every(word=>words.includes(word));shown+=!row.hidden}
status.textContent=shown+' of '+body.rows.length+' shown'})}
const targets=[...document.querySelectorAll('section.target')];
if(targets.length>1){
const list=make('div',{role:'tablist','class':'tabs','aria-label':'Targets'});
const tabs=targets.map((target,i)=>{
const tab=make('button',{role:'tab',type:'button',id:'tab-'+i,'aria-controls':target.id});
tab.textContent=target.dataset.name;target.setAttribute('role','tabpanel');
target.setAttribute('aria-labelledby',tab.id);list.append(tab);return tab});
const show=index=>tabs.forEach((tab,i)=>{tab.setAttribute('aria-selected',String(i===index));
tab.tabIndex=i===index?0:-1;targets[i].hidden=i!==index});
tabs.forEach((tab,i)=>{tab.addEventListener('click',()=>show(i));
tab.addEventListener('keydown',event=>{
const step={ArrowRight:1,ArrowLeft:-1}[event.key];if(!step)return;
const next=(i+step+tabs.length)%tabs.length;show(next);tabs[next].focus()})});
targets[0].before(list);
const follow=()=>{const i=targets.findIndex(target=>'#'+target.id===location.hash);
show(Math.max(i,0));if(i>=0)list.scrollIntoView()};
addEventListener('hashchange',follow);follow()}
"""

HATCH = (
    '<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>'
    '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="6" height="6" fill="#fff" fill-opacity=".55"/>'
    '<line x1="0" y1="0" x2="0" y2="6" stroke="#333" stroke-width="2.4"/></pattern></defs></svg>'
)
"""Defined once for every treemap of the page: what padding is filled with."""
