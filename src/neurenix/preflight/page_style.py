"""Style and script of the page, apart from what it says.

The script sorts the operations by a column that is clicked and hides rows that a filter does not
match; it inserts no text.
"""

STYLE = """
:root{color-scheme:light dark;--ink:#1d2329;--paper:#fff;--soft:#f2f4f6;--line:#d6dbe0;
--sub:#5a646e}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8ec;--paper:#15191d;--soft:#20262c;--line:#37414a;
--sub:#9aa5b0}}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1100px;margin:0 auto;padding:24px 16px 64px}
h1{font-size:26px;margin:0}h2{font-size:18px;margin:32px 0 8px}h3{font-size:14px;margin:12px 0 4px}
.sub{color:var(--sub);margin:4px 0 12px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(210px,1fr));gap:12px;margin:20px 0}
.card{background:var(--soft);border-radius:8px;padding:12px 14px;border-left:4px solid var(--line)}
.card.good{border-left-color:#3a8a4d}.card.bad{border-left-color:#b0413e}
.label{color:var(--sub);font-size:13px}.value{font-size:22px;font-weight:600}.detail{font-size:13px}
.bar{display:flex;height:26px;border-radius:5px;overflow:hidden;background:var(--soft);
border:1px solid var(--line)}
.bar span{background:#3b6fb6}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;padding:0;
margin:8px 0;font-size:13px}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px}
table{border-collapse:collapse;width:100%;font-size:13px}
th,td{text-align:left;padding:4px 10px 4px 0;border-bottom:1px solid var(--line);white-space:nowrap;
max-width:340px;overflow:hidden;text-overflow:ellipsis}
.n{text-align:right}#operations th{cursor:pointer;position:sticky;top:0;background:var(--paper)}
.wide{overflow:auto;max-height:70vh}
#filter{font:inherit;padding:5px 9px;border:1px solid var(--line);border-radius:5px;width:260px;
margin-bottom:8px;background:var(--paper);color:var(--ink)}
.findings{padding:0;list-style:none}
.findings li{background:var(--soft);border-radius:8px;padding:10px 14px;margin:8px 0}
.findings p{margin:4px 0}.fix::before{content:"→ "}
.pre{white-space:pre-wrap;overflow-wrap:anywhere}
.badge{font-size:12px;padding:1px 8px;border-radius:9px;background:#6b7680;color:#fff}
.warning .badge{background:#a8600f}.error .badge{background:#a8322f}.rule{font-weight:600}
code{font-size:13px;color:var(--sub)}
svg{width:100%;height:auto}.roof{fill:none;stroke:var(--sub);stroke-width:2}
circle{fill:#3b6fb6;fill-opacity:.55}.tick{fill:var(--sub);font-size:11px}
"""

SCRIPT = """
const table=document.getElementById('operations');
if(table){const body=table.tBodies[0];
[...table.tHead.rows[0].cells].forEach((head,i)=>{let down=true;head.addEventListener('click',()=>{
const value=r=>{const c=r.cells[i];
return c.dataset.v===undefined?c.textContent:Number(c.dataset.v)};
const rows=[...body.rows].sort((a,b)=>{const x=value(a),y=value(b);
return (x<y?-1:x>y?1:0)*(down?-1:1)});down=!down;rows.forEach(r=>body.append(r))})});
document.getElementById('filter').addEventListener('input',e=>{const t=e.target.value.toLowerCase();
for(const r of body.rows)r.hidden=!r.textContent.toLowerCase().includes(t)})}
"""
